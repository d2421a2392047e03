/*
 * primes.c - a long computation that has itself checkpointed, and goes on where it was after kill -9.
 *
 *     primes DIR N          counts the primes below N; a checkpoint into DIR each 100,000 numbers
 *     primes DIR N die      the same, but kills itself halfway
 *     towa snap restart DIR goes on from the newest checkpoint
 *
 *     cc primes.c $(pkg-config --cflags --libs towa) -o primes
 *
 * Nothing of it is written for being restarted, but for the one call.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <towa_snap.h>

static int is_prime(unsigned long n)
{
    unsigned long d;
    if (n < 4)
        return n > 1;
    for (d = 2; d * d <= n; d++)
        if (n % d == 0)
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    unsigned long n, below, found = 0;
    int dies = argc == 4 && strcmp(argv[3], "die") == 0;
    if ((argc != 3 && !dies) || (below = strtoul(argv[2], NULL, 10)) == 0) {
        fprintf(stderr, "usage: primes DIR N [die]\n");
        return 2;
    }
    for (n = 0; n < below; n++) {
        found += (unsigned long)is_prime(n);
        if (n % 100000 == 99999) {
            switch (towa_snap_take(argv[1])) {
            case TOWA_SNAP_TAKEN:
                break;
            case TOWA_SNAP_RESTARTED:
                dies = 0;
                printf("restarted at %lu; ", n + 1);
                break;
            default:
                fprintf(stderr, "primes: %s\n", towa_last_error());
                return 1;
            }
        }
        if (dies && n == below / 2)
            kill(getpid(), SIGKILL);
    }
    printf("%lu primes below %lu\n", found, below);
    return 0;
}
