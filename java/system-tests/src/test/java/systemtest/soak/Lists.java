package systemtest.soak;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.ListIterator;
import java.util.PriorityQueue;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.Stack;
import java.util.TreeSet;
import java.util.Vector;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CopyOnWriteArraySet;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.PriorityBlockingQueue;
import java.util.function.Supplier;

/** Every list, set and queue of java.util and java.util.concurrent. */
final class Lists {
    private Lists() {}

    static void addTo(Collection<Subject<?>> all) {
        list(all, "ArrayList", false, ArrayList::new);
        list(all, "LinkedList", false, LinkedList::new);
        list(all, "Vector", true, Vector::new);
        list(all, "Stack", true, Stack::new);
        list(all, "CopyOnWriteArrayList", true, CopyOnWriteArrayList::new);
        list(all, "synchronizedList", true, () -> Collections.synchronizedList(new ArrayList<>()));
        all.add(new Subject<List<Object>>("Arrays.asList", false, () -> Arrays.asList(new Object[40]), (l, r) -> {
            l.set(r.nextInt(40), Values.any(r));
            if (r.nextInt(20) == 0) {
                Collections.rotate(l, r.nextInt(40));
            }
        }, Lists::check));

        set(all, "HashSet", false, HashSet::new);
        set(all, "LinkedHashSet", false, LinkedHashSet::new);
        set(all, "TreeSet", false, TreeSet::new);
        set(all, "ConcurrentSkipListSet", true, ConcurrentSkipListSet::new);
        set(all, "CopyOnWriteArraySet", true, CopyOnWriteArraySet::new);
        set(all, "ConcurrentHashMap.newKeySet", true, ConcurrentHashMap::newKeySet);
        set(all, "newSetFromMap", false, () -> Collections.newSetFromMap(new HashMap<>()));
        all.add(new Subject<Set<Values.Colour>>("EnumSet", false, () -> EnumSet.noneOf(Values.Colour.class), (s, r) -> {
            Values.Colour c = Values.Colour.values()[r.nextInt(3)];
            if (!s.remove(c)) {
                s.add(c);
            }
        }, Lists::check));

        queue(all, "ConcurrentLinkedQueue", true, ConcurrentLinkedQueue::new);
        queue(all, "LinkedBlockingQueue", true, LinkedBlockingQueue::new);
        queue(all, "ArrayBlockingQueue", true, () -> new ArrayBlockingQueue<>(50));
        queue(all, "PriorityQueue", false, PriorityQueue::new);
        queue(all, "PriorityBlockingQueue", true, PriorityBlockingQueue::new);
        deque(all, "ArrayDeque", false, ArrayDeque::new);
        deque(all, "ConcurrentLinkedDeque", true, ConcurrentLinkedDeque::new);
        deque(all, "LinkedBlockingDeque", true, LinkedBlockingDeque::new);
    }

    // ---- lists

    private static void list(Collection<Subject<?>> all, String name, boolean shared, Supplier<List<Object>> make) {
        all.add(new Subject<>(name, shared, make, (l, r) -> operate(l, r, shared), Lists::check));
    }

    private static void operate(List<Object> l, Random r, boolean shared) {
        try {
            switch (r.nextInt(16)) {
                case 0: l.add(r.nextInt(l.size() + 1), Values.any(r)); break;
                case 1: l.remove(r.nextInt(l.size() + 1)); break;
                case 2: l.set(r.nextInt(l.size() + 1), Values.any(r)); break;
                case 3: l.addAll(List.of(Values.any(r), Values.any(r))); break;
                case 4: l.removeIf(x -> x instanceof Integer && r.nextInt(4) == 0); break;
                case 5:
                    if (r.nextInt(20) == 0) {
                        l.clear();
                    }
                    break;
                case 6:
                    if (r.nextInt(8) == 0) {
                        l.replaceAll(x -> r.nextInt(8) == 0 ? Values.any(r) : x);
                    }
                    break;
                case 7:
                    if (r.nextInt(8) == 0) {
                        // By something that never changes and that all have.
                        l.sort(java.util.Comparator.comparing(x -> x.getClass().getName()));
                    }
                    break;
                case 8:
                    if (!shared && l.size() > 3) {
                        l.subList(1, 1 + r.nextInt(l.size() - 2)).clear();
                    }
                    break;
                case 9:
                    if (!shared) {
                        for (ListIterator<Object> it = l.listIterator(); it.hasNext();) {
                            it.next();
                            int what = r.nextInt(10);
                            if (what == 0) {
                                it.remove();
                            } else if (what == 1) {
                                it.add(r.nextInt());
                            } else if (what == 2) {
                                it.set("set");
                            }
                        }
                    }
                    break;
                case 10:
                    if (!shared && r.nextInt(8) == 0) {
                        Collections.shuffle(l, r);
                    }
                    break;
                case 11:
                    if (l instanceof ArrayList<Object> a) {
                        a.trimToSize();
                        a.ensureCapacity(r.nextInt(200));
                    }
                    break;
                default: l.add(Values.any(r));
            }
            if (l.size() > 150) {
                l.removeIf(x -> r.nextBoolean());
            }
        } catch (IndexOutOfBoundsException e) {
            // another thread made it shorter
        } catch (java.util.ConcurrentModificationException e) {
            // Vector.addAll counts outside its lock, so replaceAll and sort of another thread may see it.
            if (!shared) {
                throw e;
            }
        }
    }

    static String check(Collection<?> c) {
        StringBuilder all = new StringBuilder();
        int n = 0;
        for (Object o : c) {
            n++;
            all.append(Maps.plain(o)).append(' ');
        }
        if (n != c.size()) {
            throw new AssertionError(c.getClass() + " iterates over " + n + " and has " + c.size());
        }
        if (c instanceof Set) {
            for (Object o : c) {
                if (!c.contains(o)) {
                    throw new AssertionError(c.getClass() + " does not find " + o);
                }
            }
        }
        return all.toString();
    }

    // ---- sets

    private static void set(Collection<Subject<?>> all, String name, boolean shared, Supplier<Set<Object>> make) {
        all.add(new Subject<>(name, shared, make, (s, r) -> {
            String k = Values.key(r);
            switch (r.nextInt(6)) {
                case 0: s.remove(k); break;
                case 1: s.addAll(List.of(k, Values.key(r) + "x")); break;
                case 2: s.removeIf(x -> r.nextInt(20) == 0); break;
                case 3:
                    if (r.nextInt(20) == 0) {
                        s.clear();
                    }
                    break;
                default: s.add(k);
            }
        }, Lists::check));
    }

    // ---- queues

    private static void queue(Collection<Subject<?>> all, String name, boolean shared, Supplier<Queue<Object>> make) {
        all.add(new Subject<>(name, shared, make, Lists::queueStep, Lists::check));
    }

    private static void queueStep(Queue<Object> q, Random r) throws InterruptedException {
        switch (r.nextInt(8)) {
            case 0, 1: q.poll(); break;
            case 2: q.remove(Values.key(r)); break;
            case 3:
                if (q instanceof BlockingQueue<Object> b) {
                    List<Object> out = new ArrayList<>();
                    b.drainTo(out, 3);
                    b.offer(Values.key(r), 1, java.util.concurrent.TimeUnit.MICROSECONDS);
                }
                break;
            case 4:
                q.removeIf(x -> r.nextInt(30) == 0);
                break;
            default:
                if (q.size() < 120) {
                    q.offer(Values.key(r));
                }
        }
    }

    private static void deque(Collection<Subject<?>> all, String name, boolean shared, Supplier<Deque<Object>> make) {
        all.add(new Subject<>(name, shared, make, (d, r) -> {
            switch (r.nextInt(8)) {
                case 0: d.pollLast(); break;
                case 1: d.addFirst(Values.any(r)); break;
                case 2: d.addLast(Values.any(r)); break;
                case 3: d.removeLastOccurrence("one"); break;
                case 4: d.offerFirst("one"); break;
                default: queueStep(d, r);
            }
            if (d.size() > 120) {
                d.pollFirst();
                d.pollFirst();
            }
        }, Lists::check));
    }
}
