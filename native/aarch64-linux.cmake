# Toolchain file for arm64 Linux from another machine, with Debian's cross compiler; programs run in user-mode
# emulation: cmake -S native -B build/arm64 -DCMAKE_TOOLCHAIN_FILE=aarch64-linux.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
