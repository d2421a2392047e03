import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Keeps promises in durable memory: entries that are numbered from 1, the newest {@link #KEPT} of them.
 *
 * <pre>
 *   Ledger load POOL            makes entries for ever; says "ACK n" when entry n is made
 *   Ledger check POOL ACKED     0: entry ACKED was made, and everything is as it must be at some moment after
 * </pre>
 */
final class Ledger {
    private static final int KEPT = 2000;

    record Entry(int number, String text, int[] digits) {}

    /** What one statement after the other changes: any prefix of them may be there. */
    static final class Book {
        final HashMap<Integer, Entry> byNumber = new HashMap<>();
        final TreeMap<String, Entry> byText = new TreeMap<>();
        final ConcurrentHashMap<Integer, String> beside = new ConcurrentHashMap<>();
        final ArrayList<Entry> all = new ArrayList<>();
        volatile int made;
        /** What a section changes: all or none, once for each entry. */
        long given;
        long taken;
        int givenFor;
    }

    @DurableRoot static Book book;

    private Ledger() {}

    public static void main(String[] args) {
        Towa.open(Path.of(args[1]), TowaOptions.DEFAULT.withCapacity(160 << 20));
        if (!Towa.guarantee().contains("DAX")) {
            throw new IllegalStateException("the pool does not lie in DAX memory: " + Towa.guarantee());
        }
        if (args[0].equals("check")) {
            String wrong = check(Integer.parseInt(args[2]));
            System.err.println(wrong == null ? "ledger: " + book.made + " entries made" : "ledger: WRONG: " + wrong);
            // Not closed: the next to open it finds what a power cut would have left.
            Runtime.getRuntime().halt(wrong == null ? 0 : 1);
        }
        if (book == null) {
            book = new Book();
        }
        for (int n = book.made + 1;; n++) {
            make(book, n);
            System.out.println("ACK " + n);
        }
    }

    private static String text(int n) {
        return "entry " + Integer.toString(n, 7);
    }

    private static void make(Book b, int n) {
        Entry e = new Entry(n, text(n), new int[n % 40]);
        for (int i = 0; i < e.digits.length; i++) {
            e.digits[i] = n + i;
        }
        b.byNumber.put(n, e);
        b.byText.put(e.text, e);
        b.beside.put(n, e.text);
        // The one that a cut may have left is replaced.
        if (b.all.size() > n - 1) {
            b.all.set(n - 1, e);
        } else {
            b.all.add(e);
        }
        if (b.givenFor < n) {
            Towa.atomically(() -> {
                b.given += n;
                b.taken -= n;
                b.givenFor = n;
            });
        }
        b.made = n;
        if (n > KEPT) {
            Entry old = b.all.get(n - 1 - KEPT);
            b.all.set(n - 1 - KEPT, null);
            b.byNumber.remove(old.number);
            b.byText.remove(old.text);
            b.beside.remove(old.number);
        }
    }

    /** What is wrong; null: nothing. */
    private static String check(int acked) {
        if (book == null || book.made < acked) {
            return "entry " + acked + " was promised, " + (book == null ? "and there is no book" : book.made + " are made");
        }
        List<String> differs = Towa.verify();
        if (!differs.isEmpty()) {
            return differs.toString();
        }
        Book b = book;
        if (b.given != -b.taken || b.given != (long) b.givenFor * (b.givenFor + 1) / 2 || b.givenFor != b.made && b.givenFor != b.made + 1) {
            return b.given + " given, " + b.taken + " taken for " + b.givenFor + " entries of " + b.made + ": a section is there by half";
        }
        for (int n = Math.max(1, b.made - KEPT + 1); n <= b.made; n++) {
            String wrong = entry(b, n);
            if (wrong != null) {
                return wrong;
            }
        }
        return null;
    }

    private static String entry(Book b, int n) {
        Entry e = b.byNumber.get(n);
        for (Map.Entry<String, Entry> found : Map.of("TreeMap", orNone(b.byText.get(text(n))), "ArrayList", orNone(b.all.get(n - 1))).entrySet()) {
            if (found.getValue() != e) {
                return "entry " + n + ": HashMap has " + e + ", " + found.getKey() + " " + found.getValue();
            }
        }
        if (e == null || e.number != n || !e.text.equals(text(n)) || !e.text.equals(b.beside.get(n)) || e.digits.length != n % 40) {
            return "entry " + n + " is " + e + ", beside it " + b.beside.get(n);
        }
        for (int i = 0; i < e.digits.length; i++) {
            if (e.digits[i] != n + i) {
                return "entry " + n + ", digit " + i + ": " + e.digits[i];
            }
        }
        return null;
    }

    private static final Entry NONE = new Entry(0, "", new int[0]);

    private static Entry orNone(Entry e) {
        return e == null ? NONE : e;
    }
}
