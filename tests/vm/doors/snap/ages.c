/* ages: a program that grows old without a break, as the machine under it is switched off and on; all it has is its memory.
 *
 *   ages [N [MB]]   counts for ever, from N on (0), as one does that has come there by itself; each number changes one word of MB MiB
 *                   (8; a power of two). Its name is "c" and a number that it has reached (/proc/PID/comm), said only when that is in
 *                   memory. SIGTERM: it looks at everything; status 0 if all is right.
 *
 * Memory:   word[n * STEP % words] = mix(n), n the last number up to now that has its place there; 0 before the first
 * Each number has another place than the `words` before it, since STEP is odd, and lies in another page than the one before.
 * It looks at all of it every 20,000 numbers, too, and ends with status 3 if something is wrong. Clocks may go backwards.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define STEP 513u
#define UNSTEP 0x803fe00ff803fe01u /* STEP * UNSTEP = 1 mod 2^64 */

static volatile sig_atomic_t asked;
static volatile uint64_t *word;
static uint64_t words;

static void on_term(int signal) { (void)signal, asked = 1; }

static uint64_t mix(uint64_t n) {
    n = (n ^ n >> 31) * 0x9e3779b97f4a7c15u;
    return n ^ n >> 29;
}

/* What word[place] has when `count` has been reached. */
static uint64_t expected(uint64_t place, uint64_t count) {
    uint64_t since = (count - place * UNSTEP) % words; /* of a power of two: right below 0, too */
    return since < count ? mix(count - since) : 0;
}

static int is_right(uint64_t count) {
    for (uint64_t i = 0; i < words; i++)
        if (word[i] != expected(i, count)) return 0;
    return 1;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_term};
    uint64_t start = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    words = (argc > 2 ? strtoull(argv[2], NULL, 10) : 8) << 17;
    if (!words || words & (words - 1)) return 2;
    word = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int null = open("/dev/null", O_RDWR);
    /* Files in the guest's memory are not there after the next boot. */
    if (word == MAP_FAILED || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || close(null)) return 2;
    if (sigaction(SIGTERM, &action, NULL)) return 2;
    for (uint64_t i = 0; start > 0 && i < words; i++) word[i] = expected(i, start);
    for (uint64_t count = start + 1;; count++) {
        word[count * STEP % words] = mix(count);
        char name[16];
        snprintf(name, sizeof name, "c%llu", (unsigned long long)count);
        prctl(PR_SET_NAME, name);
        if (asked || count % 20000 == 0) {
            int right = is_right(count);
            if (asked || !right) return right ? 0 : 3;
        }
        if (count % 20 == 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}
