package towabench;

import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import towabench.programs.Program;

/**
 * One JVM of a comparison: runs a program some times in one mode and tells what each iteration took.
 *
 * <pre>
 *   Runner PROGRAM MODE ITERATIONS SIZE SCRATCH [POOL]      modes: Modes
 *   @iteration number wall_ns cpu_ns checksum               cpu_ns: of the whole process
 *   @warm, @cool ms                                     when the measured half began and ended
 *   @metrics   objects used_bytes promoted stores skipped collections     over the warm iterations
 *   @counters  cycles instructions                      of the second half, in user mode; where perf works
 *   @verify    differences                                  0: every durable object equals its replica
 *   @problem   text
 * </pre>
 */
public final class Runner {
    private Runner() {}

    public static void main(String[] args) throws Exception {
        String name = args[0];
        Mode mode = Mode.valueOf(args[1]);
        int iterations = Integer.parseInt(args[2]);
        Path scratch = Path.of(args[4]);
        if (mode.opens()) {
            Pools.open(mode, Path.of(args[5]));
        }
        com.sun.management.OperatingSystemMXBean process = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        Program program = Program.named(name);
        program.prepare(scratch, Integer.parseInt(args[3]));
        Counters counters = null;
        for (int i = 0; i < iterations; i++) {
            if (i == iterations / 2) {
                counters = Counters.begin(scratch);
                System.out.println("@warm " + System.currentTimeMillis());
                if (mode.opens()) {
                    Pools.mark();
                }
            }
            long cpu = process.getProcessCpuTime();
            long wall = System.nanoTime();
            long sum = program.run();
            wall = System.nanoTime() - wall;
            cpu = process.getProcessCpuTime() - cpu;
            System.out.println("@iteration " + i + " " + wall + " " + cpu + " " + sum);
        }
        System.out.println("@cool " + System.currentTimeMillis());
        if (counters != null) {
            counters.end();
        }
        if (mode.opens()) {
            Pools.measured();
        }
        program.close();
        if (mode.opens()) {
            Pools.finish();
        }
        System.out.println("@end");
        // A thread that a program left behind must not keep the JVM.
        System.exit(0);
    }
}
