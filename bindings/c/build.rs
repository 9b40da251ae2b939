//! Gives the shared library its name for the dynamic linker, under which programs find it at run time.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvmmc.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
