package systemtest.libraries;

import static systemtest.libraries.Structure.map;
import static systemtest.libraries.Structure.of;
import static systemtest.libraries.Structure.value;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.github.benmanes.caffeine.cache.Caffeine;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.reactivex.rxjava3.processors.PublishProcessor;
import java.math.BigDecimal;
import java.util.List;
import java.util.Queue;
import java.util.function.Supplier;
import okio.ByteString;
import org.javamoney.moneta.Money;
import org.jctools.maps.NonBlockingHashMap;
import org.jctools.queues.MpmcArrayQueue;
import org.jctools.queues.MpscArrayQueue;
import org.jctools.queues.SpscUnboundedArrayQueue;
import org.jgrapht.Graph;
import org.jgrapht.graph.DefaultDirectedGraph;
import org.jgrapht.graph.DefaultEdge;
import org.joda.time.DateTime;
import org.joda.time.DateTimeZone;
import org.joda.time.Interval;
import org.joda.time.LocalDate;
import org.json.JSONArray;
import org.json.JSONObject;
import org.jsoup.Jsoup;
import org.slf4j.LoggerFactory;
import org.springframework.core.io.ByteArrayResource;
import org.springframework.util.LinkedCaseInsensitiveMap;
import org.springframework.util.LinkedMultiValueMap;
import org.springframework.util.MimeType;
import org.yaml.snakeyaml.Yaml;
import reactor.util.context.Context;
import reactor.util.function.Tuples;

/** Documents, dates, money, caches, queues, buffers, graphs, and what frameworks hand out. */
final class Everyday {
    private Everyday() {}

    static List<Structure> documents() {
        return List.of(
            of("Jackson ObjectNode", () -> new ObjectNode(JsonNodeFactory.instance), n -> {
                n.put("a", 1).put("b", "x").put("d", new BigDecimal("1.50")).putNull("n").put("t", true);
                n.putArray("array").add(1).add(2.5).addObject().put("z", false);
            }, n -> n.put("more", 2L)),
            value("Jackson ObjectMapper", ObjectMapper::new),
            of("JSON-java JSONObject", JSONObject::new, o -> o.put("a", 1).put("n", JSONObject.NULL).put("array", new JSONArray(List.of(1, 2))), o -> o.put("b", "x"))
                .<JSONObject>shown(o -> o.toString() + o.isNull("n")),
            value("SnakeYAML map", () -> new Yaml().load("a: 1\nb: [x, 2.5, null]\nd: 2001-12-14\n")),
            of("jsoup Document", () -> Jsoup.parse("<p>a</p>"), d -> d.body().appendElement("b").text("x"), d -> d.body().attr("class", "c"))
                .<org.jsoup.nodes.Document>shown(org.jsoup.nodes.Document::outerHtml));
    }

    static List<Structure> values() {
        return List.of(
            value("Joda-Time DateTime", () -> new DateTime(2024, 1, 2, 3, 4, DateTimeZone.forID("Europe/Berlin"))),
            value("Joda-Time LocalDate", () -> new LocalDate(2024, 1, 2)),
            value("Joda-Time Interval", () -> new Interval(1, 5, DateTimeZone.UTC)),
            value("Moneta Money", () -> Money.of(5, "EUR")),
            value("Okio ByteString", () -> ByteString.encodeUtf8("hello")),
            value("SLF4J Logger (Logback)", () -> LoggerFactory.getLogger("towa")).<Object>shown(l -> ((org.slf4j.Logger) l).getName()));
    }

    private static Structure queue(String name, Supplier<? extends Queue<String>> make) {
        return of(name, make::get, q -> {
            for (int i = 0; i < 100; i++) {
                q.add("element " + i);
            }
            q.poll();
        }, q -> q.add("more")).<Queue<String>>shown(q -> q.size() + " " + q.peek());
    }

    static List<Structure> concurrent() {
        return List.of(
            map("Caffeine asMap(), bounded", () -> Caffeine.newBuilder().maximumSize(10_000).<String, Integer>build().asMap()),
            map("Caffeine asMap()", () -> Caffeine.newBuilder().<String, Integer>build().asMap()),
            map("JCTools NonBlockingHashMap", NonBlockingHashMap::new),
            queue("JCTools MpscArrayQueue", () -> new MpscArrayQueue<>(1024)),
            queue("JCTools SpscUnboundedArrayQueue", () -> new SpscUnboundedArrayQueue<>(16)),
            queue("JCTools MpmcArrayQueue", () -> new MpmcArrayQueue<>(128)),
            of("Netty heap buffer", () -> Unpooled.buffer(64), b -> b.writeInt(5).writeLong(7), b -> b.writeByte(1)).<ByteBuf>shown(ByteBufUtil::hexDump),
            of("RxJava PublishProcessor", PublishProcessor::<String>create, p -> { }, p -> p.onNext("x")).<PublishProcessor<String>>shown(p -> "" + p.hasSubscribers()));
    }

    static List<Structure> frameworks() {
        return List.of(
            of("JGraphT DefaultDirectedGraph", () -> new DefaultDirectedGraph<String, DefaultEdge>(DefaultEdge.class), g -> {
                g.addVertex("a");
                g.addVertex("b");
                g.addEdge("a", "b");
            }, g -> g.addVertex("c")).<Graph<String, DefaultEdge>>shown(g -> g.toString()),
            of("Spring LinkedMultiValueMap", LinkedMultiValueMap<String, Integer>::new, m -> m.add("a", 1), m -> m.add("a", 2)),
            map("Spring LinkedCaseInsensitiveMap", LinkedCaseInsensitiveMap::new),
            value("Spring MimeType", () -> MimeType.valueOf("text/plain;charset=utf-8")),
            value("Spring ByteArrayResource", () -> new ByteArrayResource(new byte[] {1, 2})),
            value("Reactor Tuple2", () -> Tuples.of("a", 1)),
            value("Reactor Context", () -> Context.of("a", 1, "b", 2)));
    }
}
