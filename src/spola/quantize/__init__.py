"""Writing GGUF files in other weight types, from GGUF files and Hugging Face folders, tensor by tensor."""
