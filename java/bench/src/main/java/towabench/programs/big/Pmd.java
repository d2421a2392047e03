package towabench.programs.big;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import net.sourceforge.pmd.PMDConfiguration;
import net.sourceforge.pmd.PmdAnalysis;
import net.sourceforge.pmd.lang.LanguageRegistry;
import net.sourceforge.pmd.reporting.Report;
import net.sourceforge.pmd.reporting.RuleViolation;
import towabench.programs.Program;

/** PMD looks for flaws in Java sources: ours, the folder of the property {@code towabench.sources}. */
public final class Pmd implements Program {
    private List<Path> sources;

    @Override
    public void prepare(Path scratch, int size) throws Exception {
        try (Stream<Path> all = Files.walk(Path.of(System.getProperty("towabench.sources", ".")))) {
            sources = all.filter(p -> p.toString().endsWith(".java") && !p.toString().contains("/target/")).sorted().limit(Math.max(2, size * 2L)).toList();
        }
        if (sources.isEmpty()) {
            throw new IllegalStateException("no Java sources in " + System.getProperty("towabench.sources"));
        }
    }

    @Override
    public long run() {
        PMDConfiguration how = new PMDConfiguration();
        how.setThreads(0);
        how.setIgnoreIncrementalAnalysis(true);
        how.setDefaultLanguageVersion(LanguageRegistry.PMD.getLanguageById("java").getDefaultVersion());
        how.addRuleSet("rulesets/java/quickstart.xml");
        long sum = 0;
        try (PmdAnalysis pmd = PmdAnalysis.create(how)) {
            for (Path source : sources) {
                pmd.files().addFile(source);
            }
            Report report = pmd.performAnalysisAndCollectReport();
            if (!report.getProcessingErrors().isEmpty()) {
                throw new IllegalStateException(report.getProcessingErrors().get(0).getDetail());
            }
            for (RuleViolation v : report.getViolations()) {
                sum += v.getRule().getName().hashCode() * 31L + v.getBeginLine() * 7L + v.getDescription().hashCode();
            }
            return sum * 31 + report.getViolations().size();
        }
    }
}
