/*
 * towa_snap.h - a program has itself checkpointed, for C.
 *
 *     switch (towa_snap_take("/var/lib/sim/snaps")) {
 *     case TOWA_SNAP_TAKEN:     break;                 the checkpoint is durable; go on
 *     case TOWA_SNAP_RESTARTED: open_log_again(); break;   this is the program, started again from that checkpoint
 *     default:                  fputs(towa_last_error(), stderr);
 *     }
 *     ...
 *     $ towa snap restart /var/lib/sim/snaps           returns from the call above once more, in a new process
 *
 * WHAT IS GUARANTEED
 *   - TOWA_SNAP_TAKEN: a complete checkpoint of the whole process as it was inside the call is durable in the directory. It
 *     stood still for a moment only; other threads went on for the rest of the time.
 *   - A negative code: no checkpoint was taken, those before it are as they were, and the process goes on as if nothing had
 *     been. What stood in the way is also on standard error, each thing by name.
 *   - The call returns once for each time the checkpoint is restarted, with TOWA_SNAP_RESTARTED, and everything the process
 *     had is as it was inside the call.
 *
 * WHAT THE PROGRAM MUST KNOW
 *   - The program `towa` does the work: the one named by the environment variable TOWA, else one in PATH.
 *   - A program with more rights than the one that started it (set-user-id, set-group-id, file capabilities) does not ask the
 *     environment: it starts /usr/local/bin/towa (TOWA_INSTALLED names another path when the library is compiled) with an
 *     empty environment, if that file and all that leads to it belong to root and only root can write them. Otherwise the
 *     call fails with TOWA_EUNSUPPORTED.
 *   - What a restart repeats: the same random numbers, tokens and time-outs as after the checkpoint. Draw new ones when the
 *     call says TOWA_SNAP_RESTARTED if that matters (keys, session numbers).
 *   - What cannot be kept (connections, children, ...) must be closed before the call; `man towa-snap` has the list.
 *   - A child is started and waited for: a program that waits for any child (wait(2)) in another thread, or ignores
 *     SIGCHLD, takes its end away from the call, which then fails although a checkpoint may have been taken.
 */
#ifndef TOWA_SNAP_H
#define TOWA_SNAP_H

#include <towa.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWA_SNAP_TAKEN 0     /* the checkpoint is durable */
#define TOWA_SNAP_RESTARTED 1 /* this process was started again from it */

/* Takes a checkpoint of this process into the directory `dir` (made if it is not there) and waits until it is durable.
 * TOWA_SNAP_TAKEN, TOWA_SNAP_RESTARTED, or a negative TOWA_E... (TOWA_EUNSUPPORTED: the process has what cannot be kept). */
int towa_snap_take(const char *dir);

#ifdef __cplusplus
}
#endif

#endif
