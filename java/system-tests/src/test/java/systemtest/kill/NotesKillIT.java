package systemtest.kill;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/**
 * A web service under kills, with clients that remember what was answered. Strict durability: everything that was answered 204 is there; of
 * the one request that each client had under way either its effect or nothing.
 */
class NotesKillIT {
    private static final int CLIENTS = 2;
    private static final int NAMES = 60;

    @Test
    void whatWasAnsweredIsThere() throws Exception {
        Rounds.inLanes("kill-notes", Rounds.of(12), NotesKillIT::lane);
    }

    /** One client, the only one that writes to its names. */
    private static final class Client extends Thread {
        private final int port;
        private final String prefix;
        private final Random random;
        final Map<String, String> answered;
        /** The request without an answer: its name, and what it would make of it. */
        String openName;
        String openNote;
        int requests;
        Throwable failure;

        Client(int port, int number, long seed, Map<String, String> answered) {
            this.port = port;
            this.prefix = "c" + number + "-";
            this.random = new Random(seed);
            this.answered = answered;
        }

        @Override
        public void run() {
            try {
                for (;;) {
                    String name = prefix + random.nextInt(NAMES);
                    String note = random.nextInt(4) == 0 ? null : "note " + random.nextLong() + " " + "é".repeat(random.nextInt(300));
                    openName = name;
                    openNote = note;
                    int status = request(port, note == null ? "DELETE" : "PUT", name, note);
                    if (status != 204 && !(status == 404 && note == null && answered.get(name) == null)) {
                        throw new AssertionError(name + " was answered " + status);
                    }
                    if (note == null) {
                        answered.remove(name);
                    } else {
                        answered.put(name, note);
                    }
                    openName = null;
                    requests++;
                }
            } catch (IOException e) {
                // the service was killed
            } catch (Throwable e) {
                failure = e;
            }
        }
    }

    private static HttpURLConnection connect(int port, String name) throws IOException {
        HttpURLConnection c = (HttpURLConnection) URI.create("http://127.0.0.1:" + port + "/notes/" + name).toURL().openConnection();
        c.setConnectTimeout(10_000);
        c.setReadTimeout(10_000);
        return c;
    }

    private static int request(int port, String method, String name, String body) throws IOException {
        HttpURLConnection c = connect(port, name);
        c.setRequestMethod(method);
        if (body != null) {
            c.setDoOutput(true);
            // A request that is sent again by itself would be answered twice.
            c.setFixedLengthStreamingMode(body.getBytes(StandardCharsets.UTF_8).length);
            c.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
        }
        return c.getResponseCode();
    }

    private static String get(int port, String name) throws IOException {
        HttpURLConnection c = connect(port, name);
        if (c.getResponseCode() == 404) {
            return null;
        }
        try (InputStream in = c.getInputStream()) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    private static String lane(Path folder, int rounds, Random random) throws Exception {
        System.setProperty("sun.net.http.retryPost", "false");
        Path file = folder.resolve("pool");
        List<Map<String, String>> answered = List.of(new HashMap<>(), new HashMap<>());
        Client[] before = new Client[CLIENTS];
        int requests = 0;
        for (int round = 0; round <= rounds; round++) {
            try (Machine m = Machine.start(KillMoment.flags(random), "webservice.Notes", file, 0)) {
                int port = Integer.parseInt(m.expect("listening on ").split("[ ,]")[2]);
                for (int c = 0; c < CLIENTS; c++) {
                    compare(port, answered.get(c), "c" + c + "-", before[c], m);
                }
                if (round == rounds) {
                    break;
                }
                for (int c = 0; c < CLIENTS; c++) {
                    before[c] = new Client(port, c, random.nextLong(), answered.get(c));
                    before[c].start();
                }
                Thread.sleep(1 + random.nextInt(400));
                m.kill();
                for (Client c : before) {
                    c.join();
                    requests += c.requests;
                    if (c.failure != null) {
                        throw new AssertionError(m.toString(), c.failure);
                    }
                }
            }
            RustVerify.check(file);
        }
        return rounds + " rounds, " + requests + " requests answered";
    }

    private static void compare(int port, Map<String, String> answered, String prefix, Client last, Machine m) throws IOException {
        for (int n = 0; n < NAMES; n++) {
            String name = prefix + n;
            String there = get(port, name);
            boolean open = last != null && name.equals(last.openName);
            assertTrue(Objects.equals(there, answered.get(name)) || open && Objects.equals(there, last.openNote),
                () -> name + " is " + there + ", was answered " + answered.get(name) + (open ? ", under way " + last.openNote : "") + ": " + m);
            if (there == null) {
                answered.remove(name);
            } else {
                answered.put(name, there);
            }
        }
    }
}
