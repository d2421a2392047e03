package towabench.programs;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

/** A service on the JDK's own HTTP server, and two clients in the same process: notes are put, read and counted. */
public final class Http implements Program {
    /** A note and how often it was read. */
    record Note(String text, int version) {}

    private static final int CLIENTS = 2;
    private final Map<String, Note> notes = new ConcurrentHashMap<>();
    private HttpServer server;
    private ExecutorService threads;
    private int requests;

    @Override
    public void prepare(Path scratch, int size) throws IOException {
        requests = size * 120;
        threads = Executors.newFixedThreadPool(2 * CLIENTS);
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 64);
        server.createContext("/notes/", this::answer);
        server.setExecutor(threads);
        server.start();
    }

    private void answer(HttpExchange exchange) throws IOException {
        String name = exchange.getRequestURI().getPath().substring("/notes/".length());
        byte[] body;
        int status = 200;
        try (InputStream in = exchange.getRequestBody()) {
            if (exchange.getRequestMethod().equals("PUT")) {
                String text = new String(in.readAllBytes(), StandardCharsets.UTF_8);
                Note note = notes.merge(name, new Note(text, 1), (old, now) -> new Note(now.text(), old.version() + 1));
                body = ("{\"version\": " + note.version() + "}").getBytes(StandardCharsets.UTF_8);
            } else {
                Note note = notes.get(name);
                status = note == null ? 404 : 200;
                body = (note == null ? "none" : String.format("{\"version\": %d, \"text\": \"%s\"}", note.version(), note.text())).getBytes(StandardCharsets.UTF_8);
            }
        }
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    @Override
    public long run() throws Exception {
        notes.clear();
        List<Future<Long>> clients = IntStream.range(0, CLIENTS).mapToObj(n -> threads.submit(() -> client(n))).toList();
        long sum = 0;
        for (Future<Long> client : clients) {
            sum += client.get();
        }
        for (Map.Entry<String, Note> note : notes.entrySet()) {
            sum += note.getKey().hashCode() * 31L + note.getValue().text().hashCode() * 7L + note.getValue().version();
        }
        return sum;
    }

    /** Each client has notes of its own, so that what it is answered does not depend on the other. */
    private long client(int n) throws Exception {
        Random random = new Random(n);
        long sum = 0;
        for (int i = 0; i < requests; i++) {
            String name = "client" + n + "-" + random.nextInt(200);
            HttpURLConnection c = (HttpURLConnection) URI.create("http://localhost:" + server.getAddress().getPort() + "/notes/" + name).toURL().openConnection();
            if (random.nextInt(3) == 0) {
                c.setRequestMethod("PUT");
                c.setDoOutput(true);
                c.getOutputStream().write(("text " + random.nextLong() + " of ").repeat(1 + random.nextInt(20)).getBytes(StandardCharsets.UTF_8));
            }
            int status = c.getResponseCode();
            try (InputStream in = status == 200 ? c.getInputStream() : c.getErrorStream()) {
                for (byte b : in.readAllBytes()) {
                    sum = sum * 31 + b;
                }
            }
            sum += status;
        }
        return sum;
    }

    @Override
    public void close() {
        server.stop(0);
        threads.shutdownNow();
    }
}
