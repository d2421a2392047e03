package towa.weave;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.NotDurableException;
import io.towa.Towa;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What stands in place of the instruction that stores a reference to an array behaves as that does, of durable arrays and of others; cold, and compiled. */
class ArrayStoresTest {
    private static final int HOT = 30_000;

    @BeforeAll
    static void open() throws Exception {
        Fixture.open();
    }

    private static void store(Object[] a, int i, Object v) {
        a[i] = v;
    }

    private static void refuses(Object[] a, int i, Object v, Class<? extends Throwable> how, String message) {
        Object[] before = a == null ? null : a.clone();
        Throwable e = assertThrows(how, () -> store(a, i, v));
        // Where C2 knows better it throws one without message and stack.
        if (e.getStackTrace().length != 0) {
            if (message != null) assertEquals(message, e.getMessage());
            assertEquals("store", e.getStackTrace()[0].getMethodName());
            assertEquals(ArrayStoresTest.class.getName(), e.getStackTrace()[0].getClassName());
        }
        assertArrayEquals(before, a);
    }

    private static void all(Object[] objects, Integer[] numbers) {
        for (int k = 0; k < HOT; k++) {
            store(objects, k & 3, k);
            store(numbers, k & 3, k);
            assertEquals(k, objects[k & 3]);
            assertEquals(k, numbers[k & 3]);
            if (k > 20 && k < HOT - 20) continue;
            refuses(objects, 4, "v", ArrayIndexOutOfBoundsException.class, "Index 4 out of bounds for length 4");
            refuses(objects, -1, null, ArrayIndexOutOfBoundsException.class, "Index -1 out of bounds for length 4");
            refuses(numbers, 1, "no number", ArrayStoreException.class, "java.lang.String");
            refuses(null, 0, "v", NullPointerException.class, null);
        }
    }

    @Test
    void ofDurableArrays() {
        Object[] objects = new Object[4];
        Integer[] numbers = new Integer[4];
        Object[] both = {objects, numbers};
        Fixture.hold(both);
        assertTrue(Towa.isDurable(numbers));
        all(objects, numbers);
        Fixture.same(both, "arrays");
        assertEquals(List.of(), Towa.verify());
    }

    @Test
    void ofOthersThatAreMarked() {
        Object[] objects = new Object[4];
        Integer[] numbers = new Integer[4];
        System.identityHashCode(objects);
        System.identityHashCode(numbers);
        all(objects, numbers);
        store(objects, 0, Thread.currentThread());
        assertFalse(Towa.isDurable(objects));
    }

    @Test
    void ofOthers() {
        all(new Object[4], new Integer[4]);
    }

    /** The value is made durable first, so its refusal comes before that of the store; it is no part of anything then. */
    @Test
    void whatIsRefusedTwice() {
        Integer[] numbers = {1, 2};
        Fixture.hold(numbers);
        Object bad = Thread.currentThread();
        assertThrows(NotDurableException.class, () -> store(numbers, 0, bad));
        assertThrows(ArrayStoreException.class, () -> store(numbers, 0, "durable now, and unused"));
        assertEquals("[1, 2]", Arrays.toString(numbers));
        assertEquals(List.of(), Towa.verify());
    }
}
