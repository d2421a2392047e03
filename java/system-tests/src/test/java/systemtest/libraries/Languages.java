package systemtest.libraries;

import static systemtest.libraries.Structure.of;
import static systemtest.libraries.Structure.value;

import io.vavr.Lazy;
import io.vavr.Tuple;
import io.vavr.collection.Vector;
import io.vavr.control.Either;
import io.vavr.control.Option;
import io.vavr.control.Try;
import java.util.List;
import java.util.Map;
import kotlin.LazyKt;
import kotlin.Pair;
import kotlin.Triple;
import kotlin.Unit;
import kotlin.collections.ArrayDeque;
import kotlin.collections.CollectionsKt;
import kotlin.collections.MapsKt;
import kotlin.ranges.IntRange;
import org.pcollections.HashTreePMap;
import org.pcollections.TreePVector;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.VectorBuilder;
import scala.collection.mutable.ListBuffer;

/** Scala's and Kotlin's libraries, Vavr, PCollections: mostly values, and singletons. */
final class Languages {
    private Languages() {}

    private static Object scalaMap() {
        scala.collection.immutable.Map<String, Integer> m = scala.collection.immutable.Map$.MODULE$.empty();
        for (int i = 0; i < 100; i++) {
            m = m.updated("key " + i, i);
        }
        return m;
    }

    private static Object scalaList() {
        scala.collection.immutable.List<Integer> l = scala.collection.immutable.List$.MODULE$.empty();
        for (int i = 0; i < 100; i++) {
            l = l.$colon$colon(i);
        }
        return l;
    }

    private static Object scalaVector() {
        VectorBuilder<Integer> b = new VectorBuilder<>();
        for (int i = 0; i < 1000; i++) {
            b.addOne(i);
        }
        return b.result();
    }

    static List<Structure> scala() {
        return List.of(
            value("immutable.Map", Languages::scalaMap).<scala.collection.immutable.Map<String, Integer>>shown(m -> m.size() + " " + m.apply("key 7")),
            value("Nil", () -> Nil$.MODULE$),
            value("None", () -> scala.None$.MODULE$),
            value("Some", () -> new scala.Some<>("x")),
            value("List", Languages::scalaList),
            value("Vector", Languages::scalaVector),
            of("mutable.HashMap", () -> new scala.collection.mutable.HashMap<String, Integer>(), m -> m.put("a", 1), m -> m.put("b", 1)),
            of("ListBuffer", ListBuffer<String>::new, b -> b.addOne("a"), b -> b.addOne("b")),
            value("BigDecimal", () -> new scala.math.BigDecimal(new java.math.BigDecimal("1.5"))));
    }

    static List<Structure> kotlin() {
        return List.of(
            value("Pair", () -> new Pair<>("a", 1)),
            value("Triple", () -> new Triple<>(1, 2, 3)),
            value("Unit", () -> Unit.INSTANCE),
            value("emptyList()", CollectionsKt::emptyList),
            of("ArrayDeque", ArrayDeque<String>::new, d -> d.addFirst("a"), d -> d.addLast("b")),
            of("MapBuilder", MapsKt::<String, Integer>createMapBuilder, m -> m.put("a", 1), m -> m.put("b", 1)),
            value("lazyOf()", () -> LazyKt.lazyOf("x")),
            value("IntRange", () -> new IntRange(1, 5)));
    }

    static List<Structure> functional() {
        return List.of(
            value("Vavr HashMap", () -> io.vavr.collection.HashMap.of("a", 1, "b", 2)),
            value("Vavr HashMap.empty()", io.vavr.collection.HashMap::empty),
            value("Vavr List", () -> io.vavr.collection.List.of(1, 2, 3)),
            value("Vavr List.empty()", io.vavr.collection.List::empty),
            value("Vavr Vector", () -> Vector.range(0, 1000)),
            value("Vavr TreeMap", () -> io.vavr.collection.TreeMap.of("a", 1, "b", 2)),
            value("Vavr Option", () -> Option.of(5)),
            value("Vavr Option.none()", Option::none),
            value("Vavr Either", () -> Either.right(5)),
            value("Vavr Try", () -> Try.success(5)),
            value("Vavr Tuple", () -> Tuple.of(1, "a", List.of())),
            value("Vavr Lazy", () -> Lazy.of(() -> 5)),
            value("PCollections HashTreePMap", () -> HashTreePMap.from(Map.of("a", 1, "b", 2))),
            value("PCollections TreePVector", () -> TreePVector.from(List.of(1, 2, 3))));
    }
}
