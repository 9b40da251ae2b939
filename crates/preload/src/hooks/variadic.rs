//! Hooks of C functions that take any number of arguments, which Rust cannot define.
//!
//! Each consists of a few instructions that lay the arguments out in memory, and a Rust function
//! that gets a pointer to them. The exported Rust functions of the C names are placeholders: the
//! linker puts the instructions in their place (`build.rs`).
//!
//! Invariant: the instructions keep what the calling convention says a function keeps, and read
//! only what the caller passed. For execl and the like the arguments in registers are stored right
//! below those that the caller put on its stack, so all of them are one array, which is the `argv`
//! of execv. For dprintf they are a `va_list`. Sources: System V ABI for x86-64, 3.2.3 and 3.5.7;
//! Procedure Call Standard for the Arm 64-bit Architecture, 6.4 and appendix B.

use super::{hook, programs, streams};
use crate::errno;
use crate::program::Words;
use libc::{c_char, c_int, c_void};

macro_rules! placeholders {
    ($($name:ident)*) => {
        $(hook! { fn $name() -> c_int {
            errno::fail(libc::ENOSYS) as c_int
        } })*
    };
}

placeholders! { execl execlp execle dprintf __dprintf_chk }

unsafe extern "C" fn execl_words(path: *const c_char, argv: Words) -> c_int {
    // SAFETY: the program's promise to execl; the words end with null, as execv wants them.
    unsafe { programs::execv(path, argv) }
}

unsafe extern "C" fn execlp_words(file: *const c_char, argv: Words) -> c_int {
    // SAFETY: as above.
    unsafe { programs::execvp(file, argv) }
}

unsafe extern "C" fn execle_words(path: *const c_char, argv: Words) -> c_int {
    // SAFETY: as above; what comes after the null is the environment.
    unsafe {
        let mut end = argv;
        while !(*end).is_null() {
            end = end.add(1);
        }
        programs::execve(path, argv, end.add(1).cast::<Words>().read())
    }
}

unsafe extern "C" fn dprintf_list(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: the program's promise to dprintf, and a list of its arguments.
    unsafe { streams::vdprintf(fd, format, list) }
}

unsafe extern "C" fn dprintf_chk_list(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { streams::__vdprintf_chk(fd, flag, format, list) }
}

/// A function whose arguments after the first one are words: calls `$words` with the first one and
/// the address of the second one.
///
/// x86-64: the return address, which lies between the registers' part and the stack's, waits in a
/// register and then below; it is back in its place at the end.
#[cfg(all(target_arch = "x86_64", not(test)))]
macro_rules! of_words {
    ($name:literal, $words:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.vmmc_variadic_", $name, ",\"ax\",@progbits"),
            concat!(".globl vmmc_variadic_", $name),
            concat!(".type vmmc_variadic_", $name, ",@function"),
            concat!("vmmc_variadic_", $name, ":"),
            ".cfi_startproc",
            "pop rax",
            ".cfi_def_cfa_offset 0",
            ".cfi_register rip, rax",
            "push r9",
            ".cfi_adjust_cfa_offset 8",
            "push r8",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "mov rsi, rsp",
            // Six words below what was a multiple of 16 before the caller's call: again a multiple
            // of 16, as a call wants it.
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset rip, -48",
            "call {words}",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_register rip, rcx",
            "add rsp, 40",
            ".cfi_adjust_cfa_offset -40",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset rip, -8",
            "ret",
            ".cfi_endproc",
            concat!(".size vmmc_variadic_", $name, ", . - vmmc_variadic_", $name),
            ".popsection",
            words = sym $words,
        );
    };
}

/// The same. aarch64: the stack's part begins where the stack pointer is, so the registers' part
/// ends there.
#[cfg(all(target_arch = "aarch64", not(test)))]
macro_rules! of_words {
    ($name:literal, $words:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.vmmc_variadic_", $name, ",\"ax\",@progbits"),
            concat!(".globl vmmc_variadic_", $name),
            concat!(".type vmmc_variadic_", $name, ",@function"),
            ".balign 4",
            concat!("vmmc_variadic_", $name, ":"),
            ".cfi_startproc",
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset x29, -80",
            ".cfi_offset x30, -72",
            "mov x29, sp",
            "str x1, [sp, #24]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "add x1, sp, #24",
            "bl {words}",
            "ldp x29, x30, [sp], #80",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            concat!(".size vmmc_variadic_", $name, ", . - vmmc_variadic_", $name),
            ".popsection",
            words = sym $words,
        );
    };
}

/// A function of `$fixed` arguments and others of any type: calls `$list` with the former and a
/// `va_list` of the latter.
///
/// x86-64: 48 bytes of general registers and 128 of vector registers, whose number the caller has
/// put into `al`, then the list: how far each part is used up, the stack's part, and where the
/// registers' part begins.
#[cfg(all(target_arch = "x86_64", not(test)))]
macro_rules! of_list {
    ($name:literal, $fixed:literal, $into:literal, $list:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.vmmc_variadic_", $name, ",\"ax\",@progbits"),
            concat!(".globl vmmc_variadic_", $name),
            concat!(".type vmmc_variadic_", $name, ",@function"),
            concat!("vmmc_variadic_", $name, ":"),
            ".cfi_startproc",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "sub rsp, 208",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 48], xmm0",
            "movaps [rsp + 64], xmm1",
            "movaps [rsp + 80], xmm2",
            "movaps [rsp + 96], xmm3",
            "movaps [rsp + 112], xmm4",
            "movaps [rsp + 128], xmm5",
            "movaps [rsp + 144], xmm6",
            "movaps [rsp + 160], xmm7",
            "2:",
            concat!("mov dword ptr [rsp + 176], 8 * ", $fixed),
            "mov dword ptr [rsp + 180], 48",
            "lea rax, [rbp + 16]",
            "mov [rsp + 184], rax",
            "mov [rsp + 192], rsp",
            concat!("lea ", $into, ", [rsp + 176]"),
            "call {list}",
            "leave",
            ".cfi_def_cfa rsp, 8",
            "ret",
            ".cfi_endproc",
            concat!(".size vmmc_variadic_", $name, ", . - vmmc_variadic_", $name),
            ".popsection",
            list = sym $list,
        );
    };
}

/// The same. aarch64: the list (the stack's part, the ends of the general and of the vector
/// registers' parts, and how far before them the next ones lie), then 64 bytes of general registers
/// and 128 of vector registers.
#[cfg(all(target_arch = "aarch64", not(test)))]
macro_rules! of_list {
    ($name:literal, $fixed:literal, $into:literal, $list:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.vmmc_variadic_", $name, ",\"ax\",@progbits"),
            concat!(".globl vmmc_variadic_", $name),
            concat!(".type vmmc_variadic_", $name, ",@function"),
            ".balign 4",
            concat!("vmmc_variadic_", $name, ":"),
            ".cfi_startproc",
            "stp x29, x30, [sp, #-240]!",
            ".cfi_def_cfa_offset 240",
            ".cfi_offset x29, -240",
            ".cfi_offset x30, -232",
            "mov x29, sp",
            "stp x0, x1, [sp, #48]",
            "stp x2, x3, [sp, #64]",
            "stp x4, x5, [sp, #80]",
            "stp x6, x7, [sp, #96]",
            "stp q0, q1, [sp, #112]",
            "stp q2, q3, [sp, #144]",
            "stp q4, q5, [sp, #176]",
            "stp q6, q7, [sp, #208]",
            "add x9, sp, #240",
            "add x10, sp, #112",
            "stp x9, x10, [sp, #16]",
            "str x9, [sp, #32]",
            concat!("mov w10, #-(64 - 8 * ", $fixed, ")"),
            "mov w11, #-128",
            "stp w10, w11, [sp, #40]",
            concat!("add ", $into, ", sp, #16"),
            "bl {list}",
            "ldp x29, x30, [sp], #240",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            concat!(".size vmmc_variadic_", $name, ", . - vmmc_variadic_", $name),
            ".popsection",
            list = sym $list,
        );
    };
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(test)))]
mod assembly {
    use super::{dprintf_chk_list, dprintf_list, execl_words, execle_words, execlp_words};

    of_words!("execl", execl_words);
    of_words!("execlp", execlp_words);
    of_words!("execle", execle_words);

    #[cfg(target_arch = "x86_64")]
    mod lists {
        use super::{dprintf_chk_list, dprintf_list};
        of_list!("dprintf", 2, "rdx", dprintf_list);
        of_list!("__dprintf_chk", 3, "rcx", dprintf_chk_list);
    }

    #[cfg(target_arch = "aarch64")]
    mod lists {
        use super::{dprintf_chk_list, dprintf_list};
        of_list!("dprintf", 2, "x2", dprintf_list);
        of_list!("__dprintf_chk", 3, "x3", dprintf_chk_list);
    }
}
