//! Gives the shared library its soname, so that programs bind to the major version of the ABI and not to a path.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets CARGO_PKG_VERSION_MAJOR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtowa.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}
