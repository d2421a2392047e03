package io.towa.agent;

/**
 * Numbers for field references as they stand in woven code: (owner named there, field name, descriptor) to int, for the whole machine.
 *
 * <p>Always true: a number once given never changes its meaning. The owner may be a subclass of the class that declares the field, and two
 * classes of one name in two loaders share their numbers: who resolves a number starts from the object's own class. What a number means is
 * written before it is given, so who has one asks without a lock: stores do.
 */
public final class FieldIds {
    private static volatile String[] owners = new String[1024];
    private static volatile String[] names = new String[1024];
    private static volatile String[] descs = new String[1024];
    /** Open addressing: number + 1, or 0. */
    private static int[] table = new int[4096];
    private static int count;

    private FieldIds() {}

    public static synchronized int of(String owner, String name, String desc) {
        int slot = find(table, owner, name, desc);
        if (table[slot] != 0) return table[slot] - 1;
        if (count == names.length) grow();
        slot = find(table, owner, name, desc);
        owners[count] = owner;
        names[count] = name;
        descs[count] = desc;
        table[slot] = ++count;
        return count - 1;
    }

    private static int find(int[] in, String owner, String name, String desc) {
        int mask = in.length - 1;
        int h = owner.hashCode() * 31 + name.hashCode();
        for (int slot = (h ^ h >>> 15) & mask; ; slot = slot + 1 & mask) {
            int id = in[slot] - 1;
            if (id < 0 || names[id].equals(name) && owners[id].equals(owner) && descs[id].equals(desc)) return slot;
        }
    }

    private static void grow() {
        int size = count * 2;
        String[][] old = {owners, names, descs};
        String[][] now = {new String[size], new String[size], new String[size]};
        for (int k = 0; k < 3; k++) System.arraycopy(old[k], 0, now[k], 0, count);
        owners = now[0];
        names = now[1];
        descs = now[2];
        int[] wider = new int[size * 4];
        for (int id = 0; id < count; id++) wider[find(wider, owners[id], names[id], descs[id])] = id + 1;
        table = wider;
    }

    /** Internal name (with slashes) of the class that the field reference names. */
    public static String owner(int id) {
        return owners[id];
    }

    public static String name(int id) {
        return names[id];
    }

    public static String desc(int id) {
        return descs[id];
    }

    /** How many there are: numbers are 0 to count() - 1. */
    public static synchronized int count() {
        return count;
    }

    /** Bytes of a primitive field's value; 4 for a reference. */
    public static int size(int id) {
        switch (desc(id).charAt(0)) {
            case 'Z': case 'B': return 1;
            case 'S': case 'C': return 2;
            case 'J': case 'D': return 8;
            default: return 4;
        }
    }
}
