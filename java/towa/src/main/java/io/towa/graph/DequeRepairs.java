package io.towa.graph;

import java.util.ArrayDeque;
import jdk.internal.misc.Unsafe;

/**
 * Brings the ends of an {@link ArrayDeque} in line with its elements.
 *
 * <p>The elements lie side by side from head to tail, and one place at least is free. Each end is stored beside an element, one after the other, so a
 * crash may leave
 *
 * <pre>
 *   a head before an empty place          pollFirst, addFirst, clear: a deque that is not empty would give null for ever
 *   elements at the tail and behind it    addLast, pollLast, bulk removals: they are not in the deque
 *   no free place                         addLast before it grows: the deque would be empty
 *   head at the tail before all others    addFirst of one that is to grow: the same
 *   a gap                                 growth, in pools of older builds
 * </pre>
 */
final class DequeRepairs {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long ELEMENTS = Repairs.offset(ArrayDeque.class, "elements");
    private static final long HEAD = Repairs.offset(ArrayDeque.class, "head");
    private static final long TAIL = Repairs.offset(ArrayDeque.class, "tail");

    private final Repairs repairs;

    DequeRepairs(Repairs repairs) {
        this.repairs = repairs;
    }

    void look(Object q) {
        Object[] items = (Object[]) U.getReference(q, ELEMENTS);
        int head = U.getInt(q, HEAD);
        int tail = U.getInt(q, TAIL);
        int length = items.length;
        if (head >= length || tail >= length) {
            // Threads that changed it without its lock.
            return;
        }
        int within = head == tail ? full(items, head) : Math.floorMod(tail - head, length);
        int n = 0;
        int first = within;
        for (int i = within - 1; i >= 0; i--) {
            if (items[at(head, i, length)] != null) {
                n++;
                first = i;
            }
        }
        if (within == length || n < within - first) {
            rebuild(q, items, head, n);
            return;
        }
        repairs.putInt(q, HEAD, at(head, first, length));
        for (int i = within; i < length; i++) {
            int place = at(head, i, length);
            repairs.put(items, U.arrayBaseOffset(Object[].class) + (long) place * U.arrayIndexScale(Object[].class), null);
        }
    }

    /**
     * @return how many places from the head on are the deque's, if head and tail are the same: all, if it is to grow, or has grown and not moved its
     *     elements; or none
     */
    private static int full(Object[] items, int head) {
        int n = 0;
        for (int i = 0; i < items.length; i++) {
            n += items[i] == null ? 0 : 1;
        }
        boolean all = items[head] == null ? n == items.length - 1 : n > 1 || items.length == 1;
        return n > 0 && all ? items.length : 0;
    }

    private static int at(int head, int i, int length) {
        return (int) ((head + (long) i) % length);
    }

    private void rebuild(Object q, Object[] items, int head, int n) {
        Object[] anew = new Object[Math.max(items.length, n + 1) + 1];
        int to = 0;
        for (int i = 0; i < items.length && to < n; i++) {
            Object e = items[at(head, i, items.length)];
            if (e != null) {
                anew[to++] = e;
            }
        }
        repairs.put(q, ELEMENTS, anew);
        repairs.putInt(q, HEAD, 0);
        repairs.putInt(q, TAIL, n);
    }
}
