package webservice;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.towa.DurableRoot;
import io.towa.Towa;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;

/**
 * A web service that keeps notes in a map, and has them again after any crash: no database, no save.
 *
 * <pre>
 *   java -javaagent:towa.jar -cp examples.jar webservice.Notes FILE [PORT]        (loopback only; port 0: any)
 *   curl -X PUT  -d 'buy milk' localhost:8080/notes/1        204, durable when it answers
 *   curl         localhost:8080/notes/1                      200 and the note, or 404
 *   curl -X DELETE localhost:8080/notes/1                    204
 * </pre>
 */
public final class Notes {
    @DurableRoot
    private static ConcurrentHashMap<String, String> notes;

    private static final int LONGEST = 1 << 20;

    public static void main(String[] args) throws IOException {
        if (args.length < 1) {
            System.err.println("usage: webservice.Notes FILE [PORT]");
            System.exit(2);
        }
        Towa.open(Path.of(args[0]));
        if (notes == null) {
            notes = new ConcurrentHashMap<>();
        }
        int port = args.length > 1 ? Integer.parseInt(args[1]) : 8080;
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        server.createContext("/notes/", Notes::answer);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        System.out.println("listening on " + server.getAddress().getPort() + ", " + notes.size() + " notes, " + Towa.guarantee());
    }

    private static void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            String name = exchange.getRequestURI().getPath().substring("/notes/".length());
            switch (exchange.getRequestMethod()) {
                case "GET" -> {
                    String note = notes.get(name);
                    byte[] body = note == null ? new byte[0] : note.getBytes(StandardCharsets.UTF_8);
                    exchange.sendResponseHeaders(note == null ? 404 : 200, body.length == 0 ? -1 : body.length);
                    exchange.getResponseBody().write(body);
                }
                case "PUT" -> {
                    byte[] body = exchange.getRequestBody().readNBytes(LONGEST + 1);
                    if (body.length <= LONGEST) {
                        notes.put(name, new String(body, StandardCharsets.UTF_8));
                    }
                    exchange.sendResponseHeaders(body.length <= LONGEST ? 204 : 413, -1);
                }
                case "DELETE" -> {
                    boolean there = notes.remove(name) != null;
                    exchange.sendResponseHeaders(there ? 204 : 404, -1);
                }
                default -> exchange.sendResponseHeaders(405, -1);
            }
        }
    }
}
