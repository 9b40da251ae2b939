//! Puts functions written in assembly where the C library's variadic ones are looked for: Rust can
//! export only functions of its own, so those are placeholders (`src/hooks/variadic.rs`), and the
//! linker gives their names to the assembly.
//!
//! Invariant: the names are those of the placeholders there. Source: ld(1), `--defsym`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if machine == "x86_64" || machine == "aarch64" {
        for name in ["execl", "execlp", "execle", "dprintf", "__dprintf_chk"] {
            println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=vmmc_variadic_{name}");
        }
    }
}
