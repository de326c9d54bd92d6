// Builds the page into the Python package, from where the server takes it. No inline code: the page's
// content security policy allows none. Addresses are relative, so that it works behind a path prefix.
import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  plugins: [preact({ devToolsEnabled: false })],
  build: {
    outDir: "../src/spola/server/page",
    emptyOutDir: true,
    assetsDir: "page",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: {
      output: { entryFileNames: "page/app.js", chunkFileNames: "page/[name].js", assetFileNames: "page/[name][extname]" },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8000", "/page/glossary.json": "http://127.0.0.1:8000" } },
});
