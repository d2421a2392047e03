package io.towa.agent;

import jdk.internal.misc.CDS;

/**
 * Archives of classes that the JVM makes and uses to start faster: AOT caches and CDS archives.
 *
 * <p>A run that makes one ends in a crash of the JVM (JDK 25: {@code ArchiveBuilder::record_regenerated_object}) if classes of the JDK were
 * transformed in it. So nothing is woven in such a run.
 *
 * <p>An archive that was made with towa.jar on the class path, and not on the boot loader's, has Towa's classes as the program's own. The
 * JVM takes them before it asks the boot loader, so there would be two copies of the library. Such an archive is refused.
 */
final class Archives {
    private static final String HOW = "docs/java.md says how to make one for a program with Towa: \"Starting faster\"";

    private Archives() {}

    /** Whether this run makes an archive; says so. */
    static boolean isMaking() {
        if (!CDS.isDumpingArchive()) return false;
        System.err.println("towa: this run makes an AOT cache or CDS archive, which the JVM cannot do beside this agent:"
            + " nothing is woven, and no pool can be opened. " + HOW);
        return true;
    }

    /** Ends the program if its loader has Towa's classes from an archive. */
    static void check(ClassLoader system) {
        try {
            if (Class.forName("io.towa.Towa", false, system).getClassLoader() != null) refuseCopies();
        } catch (ClassNotFoundException e) {
            // A loader of the program's own, which does not ask the boot loader.
        }
    }

    static void refuseCopies() {
        System.err.println("towa: the archive of classes that this JVM uses (-XX:AOTCache, -XX:SharedArchiveFile) has Towa's as the"
            + " program's own classes. " + HOW);
        System.exit(1);
    }
}
