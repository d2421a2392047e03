package io.towa.agent;

/** A few names, without a collection: those of java.util may be what is being woven. */
final class NameSet {
    private String[] names = new String[0];

    void add(String name) {
        if (contains(name)) return;
        String[] more = new String[names.length + 1];
        System.arraycopy(names, 0, more, 0, names.length);
        more[names.length] = name;
        names = more;
    }

    boolean contains(String name) {
        for (int i = 0; i < names.length; i++) if (names[i].equals(name)) return true;
        return false;
    }
}
