/* Preloaded: of the syncs of a process, one fails, as on a device that has an error once. It reaches the device as little as it could have.
   TOWA_FAIL_AT says which one, counted from 1; TOWA_FAIL_LOG names a file that gets a byte for each sync, and an F for the one that failed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long count;

static int fails(void) {
    const char *at = getenv("TOWA_FAIL_AT"), *log = getenv("TOWA_FAIL_LOG");
    int failed = at && atomic_fetch_add(&count, 1) + 1 == atol(at);
    int file = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file >= 0) {
        if (write(file, failed ? "F" : ".", 1) < 0)
            abort();
        close(file);
    }
    if (failed)
        errno = EIO;
    return failed;
}

#define INTERPOSE(name, parameters, arguments)                                                                            \
    int name parameters {                                                                                                 \
        int(*next) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                               \
        return fails() ? -1 : next arguments;                                                                             \
    }

INTERPOSE(fsync, (int file), (file))
INTERPOSE(fdatasync, (int file), (file))
INTERPOSE(syncfs, (int file), (file))
INTERPOSE(msync, (void *at, size_t len, int flags), (at, len, flags))
