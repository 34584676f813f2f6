//! Compiles the C++ shim over libtorch, and tells cargo where to find the shim and libtorch.

#![allow(clippy::disallowed_macros, reason = "cargo reads what it prints")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(error) = native::build() {
        println!("cargo::error={error}");
    }
}

/// The build of the native engine's shim.
mod native {
    use std::env;
    use std::path::{Path, PathBuf};

    /// The directory of the shim's sources.
    const SHIM: &str = "src/shim";

    /// The name of the static library made of the shim.
    const LIBRARY: &str = "zprobe_shim";

    /// Compiles the shim, and tells cargo where the library is.
    pub fn build() -> Result<(), String> {
        println!("cargo::rerun-if-changed={SHIM}");
        let lib = libtorch_lib()?;
        let out = compile(&lib)?;
        for dir in [&out, &lib] {
            println!("cargo::rustc-link-search=native={}", dir.display());
        }
        // The programs run from where they are built, without any environment variable.
        for target in ["bin=zprobe-rank", "examples"] {
            println!("cargo::rustc-link-arg-{target}=-Wl,-rpath,{}", lib.display());
        }
        Ok(())
    }

    /// The directory of libtorch's libraries, as torch-sys found it.
    fn libtorch_lib() -> Result<PathBuf, String> {
        env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from).ok_or_else(|| {
            "torch-sys did not say where libtorch is (DEP_TCH_LIBTORCH_LIB is not set): build with \
             `cargo xtask build`, and without the feature `doc-only` of tch"
                .into()
        })
    }

    /// Compiles the shim into a static library, and returns the library's directory.
    fn compile(lib: &Path) -> Result<PathBuf, String> {
        let include = lib.with_file_name("include");
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .file(Path::new(SHIM).join("all.cpp"))
            .include(Path::new(SHIM).join("gloo_stub"))
            .define("USE_C10D_GLOO", None)
            .define("_GLIBCXX_USE_CXX11_ABI", "1")
            // The shim only calls into libtorch: a higher optimization level would cost time and gain
            // nothing.
            .opt_level(1)
            .debug(false)
            // The lines that cc would print for cargo would link the library into every target of the
            // package.
            .cargo_metadata(false);
        for dir in [include.join("torch/csrc/api/include"), include] {
            // These are included as system headers, for which the compiler prints no warnings.
            build.flag("-isystem").flag(dir);
        }
        for variable in ["CXX", "CXXFLAGS"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        build.try_compile(LIBRARY).map_err(|error| format!("the C++ shim: {error}"))?;
        let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: cargo runs this program")?;
        Ok(PathBuf::from(out))
    }
}
