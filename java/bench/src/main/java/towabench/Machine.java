package towabench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/** The machine a run was made on, so that a figure can be read for what it is. */
final class Machine {
    private Machine() {}

    static Map<String, Object> here() {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("cpu", line("/proc/cpuinfo", "model name"));
        m.put("cores", Runtime.getRuntime().availableProcessors());
        m.put("memory_mb", megabytes("MemTotal"));
        m.put("kernel", System.getProperty("os.version"));
        m.put("jdk", System.getProperty("java.vm.vendor") + " " + System.getProperty("java.runtime.version"));
        m.put("load_at_start", load());
        m.put("load_at_end", Double.NaN);
        m.put("commit", System.getProperty("towabench.commit", "unknown"));
        return m;
    }

    /** Mean number of processes that ran or wanted to, over a minute: well above 0 at the start, others were using the cores. */
    static double load() {
        try {
            return Double.parseDouble(Files.readString(Path.of("/proc/loadavg")).split(" ")[0]);
        } catch (IOException e) {
            return Double.NaN;
        }
    }

    static long memoryAvailableMb() {
        return megabytes("MemAvailable");
    }

    private static long megabytes(String field) {
        String digits = line("/proc/meminfo", field).replaceAll("\\D", "");
        return digits.isEmpty() ? 0 : Long.parseLong(digits) / 1024;
    }

    private static String line(String file, String field) {
        try {
            for (String l : Files.readAllLines(Path.of(file))) {
                if (l.startsWith(field)) {
                    return l.substring(l.indexOf(':') + 1).strip();
                }
            }
        } catch (IOException e) {
            // not on this kernel
        }
        return "unknown";
    }
}
