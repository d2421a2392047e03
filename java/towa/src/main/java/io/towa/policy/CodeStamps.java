package io.towa.policy;

import io.towa.agent.Agent;
import java.io.IOException;
import java.net.URL;
import java.net.URISyntaxException;
import java.nio.file.FileSystemNotFoundException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.CodeSource;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * Tells whether the files that classes come from may have changed, without reading them: by size, number and time of the last change of each jar, or of each class
 * file in a folder. The kernel sets that time; no copy can set it back. One instance for one opening.
 */
public final class CodeStamps {
    private static final long FOLDER = -1;
    /** From the start of the Java machine to that of the agent, and then some. */
    private static final long MARGIN_MS = 60_000;

    private final Map<Path, Long> known = new HashMap<>();
    private final Map<URL, Path> places = new HashMap<>();

    /** @return a number for the files of {@code c}, of the classes above it and of its interfaces; 0: they are not known */
    public long of(Class<?> c) {
        Set<Class<?>> all = new HashSet<>();
        long sum = 0;
        for (Class<?> k = c; k != null; k = k.getSuperclass()) {
            add(k, all);
        }
        for (Class<?> k : all) {
            long stamp = ofOne(k);
            if (stamp == 0) {
                return 0;
            }
            sum += mix(stamp ^ k.getName().hashCode());
        }
        return sum == 0 ? 1 : sum;
    }

    private static void add(Class<?> k, Set<Class<?>> into) {
        if (k.getClassLoader() != null && into.add(k)) {
            for (Class<?> i : k.getInterfaces()) {
                add(i, into);
            }
        }
    }

    private long ofOne(Class<?> k) {
        try {
            CodeSource source = k.getProtectionDomain().getCodeSource();
            URL url = source == null ? null : source.getLocation();
            if (url == null || !url.getProtocol().equals("file")) {
                return 0;
            }
            Path place = places.get(url);
            if (place == null) {
                place = Path.of(url.toURI());
                places.put(url, place);
            }
            long jar = stamp(place);
            long stamp = jar != FOLDER ? jar : stamp(place.resolve(k.getName().replace('.', '/') + ".class"));
            return stamp == FOLDER ? 0 : stamp;
        } catch (IOException | URISyntaxException | IllegalArgumentException | UnsupportedOperationException | FileSystemNotFoundException | SecurityException e) {
            return 0;
        }
    }

    /** {@link #FOLDER}; 0: it may have been written since the program began, so classes may come from what it was before. */
    private long stamp(Path file) throws IOException {
        Long stamp = known.get(file);
        if (stamp == null) {
            Map<String, Object> a = Files.readAttributes(file, "unix:isDirectory,size,ino,ctime");
            long time = ((java.nio.file.attribute.FileTime) a.get("ctime")).to(TimeUnit.NANOSECONDS);
            long all = mix(mix(mix((Long) a.get("size")) + ((Number) a.get("ino")).longValue()) + time);
            boolean late = TimeUnit.NANOSECONDS.toMillis(time) > Agent.BEGAN - MARGIN_MS;
            stamp = (Boolean) a.get("isDirectory") ? FOLDER : late ? 0 : all == 0 || all == FOLDER ? 1 : all;
            known.put(file, stamp);
        }
        return stamp;
    }

    /** Spreads the bits (the finaliser of SplitMix64). */
    public static long mix(long x) {
        long z = (x ^ x >>> 30) * 0xbf58476d1ce4e5b9L;
        z = (z ^ z >>> 27) * 0x94d049bb133111ebL;
        return z ^ z >>> 31;
    }
}
