package io.towa.graph;

import io.towa.Durability;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import io.towa.pool.PoolFile;
import io.towa.pool.Records;
import io.towa.pool.Records.ClassRecord;
import io.towa.pool.Records.RootRecord;
import io.towa.pool.SizeClasses;
import io.towa.pool.Superblock;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** What a pool's file holds, read with the classes of the format, without recovery: no Java object is made of a replica. */
final class PoolContents {
    /** The replicas of one class: how many, their bytes, and those of the blocks that they are in. */
    record Count(ClassRecord of, long replicas, long bytes, long blockBytes) {
        Count plus(long more) {
            int sizeClass = SizeClasses.of(more);
            long block = sizeClass < 0 ? (more + Layout.SEGMENT - 1) / Layout.SEGMENT * Layout.SEGMENT : SizeClasses.bytes(sizeClass);
            return new Count(of, replicas + 1, bytes + more, blockBytes + block);
        }
    }

    /** As on the disk, before it was opened here. */
    final Superblock superblock;
    final long fileBytes;
    final long frontier;
    final long undo;
    final List<ClassRecord> classes;
    final List<RootRecord> roots;
    final Map<String, Boolean> rootIsNull = new HashMap<>();
    final Map<Integer, Count> counts = new HashMap<>();
    /** The graph in words: a line for each replica, in the order of a walk from the roots, these by name; references are numbers of lines. */
    final List<String> lines = new ArrayList<>();

    private final Map<Integer, ClassRecord> byIndex = new HashMap<>();
    private final Map<Long, Integer> numbers = new HashMap<>();
    /** Positions of replicas, in the order of the lines. */
    final List<Long> reached = new ArrayList<>();

    /** @param file a copy: opening it as its owner changes its superblock */
    PoolContents(Path file) throws Exception {
        try (FileChannel channel = FileChannel.open(file)) {
            superblock = Superblock.read(channel, file.toString());
            fileBytes = channel.size();
        }
        PoolFile pool = new PoolFile(file, 0, Durability.PROCESS);
        try {
            frontier = Nvm.getLong(Layout.FRONTIER);
            undo = Nvm.getLong(Layout.UNDO) == Layout.NONE ? 0 : Nvm.getLong(Layout.UNDO);
            classes = Records.classes("pool", frontier);
            roots = new ArrayList<>(Records.roots("pool", frontier));
            roots.sort(Comparator.comparing(RootRecord::className).thenComparing(RootRecord::field));
            for (ClassRecord c : classes) {
                byIndex.put(c.index(), c);
            }
            for (RootRecord r : roots) {
                long value = Nvm.getLong(r.value());
                rootIsNull.put(r.className() + "." + r.field(), value == 0);
                reference(value);
            }
            for (int i = 0; i < reached.size(); i++) {
                look(reached.get(i));
            }
        } finally {
            pool.close();
        }
    }

    private String reference(long at) {
        if (at == 0) {
            return "null";
        }
        Integer number = numbers.get(at);
        if (number == null) {
            number = reached.size();
            numbers.put(at, number);
            reached.add(at);
        }
        return "#" + number;
    }

    private void look(long at) {
        ClassRecord c = byIndex.get(Nvm.getInt(at + Layout.CLASS_INDEX));
        if (c == null) {
            throw new AssertionError("the replica at " + at + " is of no class");
        }
        int length = Nvm.getInt(at + Layout.LENGTH);
        long bytes = Layout.DATA;
        // By name: writers may order fields as they like, and leave out those that are caches.
        Map<String, String> parts = new TreeMap<>();
        switch (c.form()) {
            case Layout.FORM_OBJECT:
                bytes = c.instanceBytes();
                for (Records.Field f : c.fields()) {
                    parts.put(f.declaring() + "." + f.name() + " " + f.descriptor(), value(at + f.offset(), f.descriptor().charAt(0)));
                }
                break;
            case Layout.FORM_ARRAY:
                char element = c.name().charAt(1);
                bytes += (long) length * width(element);
                StringBuilder elements = new StringBuilder();
                for (int i = 0; i < length; i++) {
                    elements.append(value(at + Layout.DATA + (long) i * width(element), element)).append(' ');
                }
                parts.put("elements", elements.toString());
                break;
            default:
                bytes += length;
                parts.put("text", Constants.text(at));
                break;
        }
        // What class such a constant is of is not said.
        String name = c.form() == Layout.FORM_NAMED ? "constant" : c.name();
        lines.add(name + " form " + c.form() + " length " + length + " " + parts);
        counts.put(c.index(), counts.getOrDefault(c.index(), new Count(c, 0, 0, 0)).plus(bytes));
    }

    private static int width(char type) {
        return type == 'L' || type == '[' ? 8 : ClassInfo.bytes(type);
    }

    private String value(long at, char type) {
        return type == 'L' || type == '[' ? reference(Nvm.getLong(at)) : "" + Nvm.getBits(at, width(type));
    }
}
