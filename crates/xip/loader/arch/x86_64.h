/*
 * x86_64.h: what the loader must say in the machine's own words: system calls, the first instructions, and the ELF machine.
 */
#ifndef TOWA_XIP_ARCH_H
#define TOWA_XIP_ARCH_H

#define ARCH_MACHINE EM_X86_64

static inline long arch_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/*
 * Calls loader_main(stack), and goes to the address it returns with the stack pointer and rdx (the function to register with atexit,
 * or 0) as the kernel gave them, and the registers that held them 0 again.
 */
#define ARCH_START                      \
    __asm__(".text\n"                   \
            ".globl _start\n"           \
            ".hidden _start\n"          \
            ".type _start, @function\n" \
            "_start:\n"                 \
            "    xor %ebp, %ebp\n"      \
            "    mov %rsp, %rbx\n"      \
            "    mov %rdx, %r12\n"      \
            "    mov %rsp, %rdi\n"      \
            "    and $-16, %rsp\n"      \
            "    call loader_main\n"    \
            "    mov %rbx, %rsp\n"      \
            "    mov %r12, %rdx\n"      \
            "    xor %ebx, %ebx\n"      \
            "    xor %r12d, %r12d\n"    \
            "    jmp *%rax\n"           \
            ".size _start, . - _start\n")

#endif
