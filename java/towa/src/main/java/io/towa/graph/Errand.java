package io.towa.graph;

/**
 * Code of the program that a recovery must run: an initialiser, a method that finds a constant. The program's thread runs it, whichever thread of the walk needs it
 * ({@link RecoveryWalk#byProgram}).
 */
interface Errand {
    /** Runs it; throws nothing. */
    void run();

    /** Whether it has run, well or not. */
    boolean isDone();

    /** Finds the object of a constant's text. */
    final class Find implements Errand {
        private final String text;
        private final ClassMapping of;
        private final Renames names;
        private Object found;
        private Throwable failure;
        private volatile boolean done;

        Find(String text, ClassMapping of, Renames names) {
            this.text = text;
            this.of = of;
            this.names = names;
        }

        @Override
        public void run() {
            try {
                found = Constants.resolve(text, of.form, of.type, names);
            } catch (Throwable e) {
                failure = e;
            }
            done = true;
        }

        @Override
        public boolean isDone() {
            return done;
        }

        Object found() {
            if (failure instanceof RuntimeException) {
                throw (RuntimeException) failure;
            }
            if (failure instanceof Error) {
                throw (Error) failure;
            }
            return found;
        }
    }
}
