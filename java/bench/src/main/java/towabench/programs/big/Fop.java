package towabench.programs.big;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Date;
import java.util.zip.CRC32;
import javax.xml.transform.TransformerFactory;
import javax.xml.transform.sax.SAXResult;
import javax.xml.transform.stream.StreamSource;
import org.apache.fop.apps.FOUserAgent;
import org.apache.fop.apps.FopFactory;
import org.apache.fop.apps.MimeConstants;
import towabench.programs.Program;
import towabench.programs.Words;

/** FOP sets a generated document of paragraphs, lists and tables as PDF. */
public final class Fop implements Program {
    private String document;

    @Override
    public void prepare(Path scratch, int size) {
        // Its progress messages are no result.
        java.util.logging.Logger.getLogger("org.apache.fop").setLevel(java.util.logging.Level.SEVERE);
        java.util.logging.Logger.getLogger("FOP").setLevel(java.util.logging.Level.SEVERE);
        Words words = new Words(3, 3000);
        StringBuilder fo = new StringBuilder("""
            <fo:root xmlns:fo="http://www.w3.org/1999/XSL/Format"><fo:layout-master-set><fo:simple-page-master master-name="A4" page-height="297mm"
            page-width="210mm" margin="20mm"><fo:region-body margin-bottom="15mm"/><fo:region-after extent="10mm"/></fo:simple-page-master></fo:layout-master-set>
            <fo:page-sequence master-reference="A4" hyphenate="false"><fo:static-content flow-name="xsl-region-after"><fo:block text-align="center">Page
            <fo:page-number/> of <fo:page-number-citation-last ref-id="end"/></fo:block></fo:static-content><fo:flow flow-name="xsl-region-body">
            """);
        for (int chapter = 0; chapter < Math.max(1, size); chapter++) {
            fo.append("<fo:block font-size=\"18pt\" space-before=\"8mm\" keep-with-next=\"always\" id=\"c").append(chapter).append("\">").append(words.text(4)).append("</fo:block>");
            for (int i = 0; i < 6; i++) {
                fo.append("<fo:block text-align=\"justify\" space-before=\"3mm\" widows=\"2\">").append(words.text(90 + words.below(80)))
                    .append(" <fo:inline font-weight=\"bold\">").append(words.text(3)).append("</fo:inline>, page <fo:page-number-citation ref-id=\"c")
                    .append(words.below(chapter + 1)).append("\"/></fo:block>");
            }
            fo.append("<fo:table table-layout=\"fixed\" width=\"100%\" border=\"1pt solid black\"><fo:table-column column-width=\"40mm\" number-columns-repeated=\"4\"/><fo:table-body>");
            for (int row = 0; row < 15; row++) {
                fo.append("<fo:table-row>");
                for (int column = 0; column < 4; column++) {
                    fo.append("<fo:table-cell border=\"0.5pt solid gray\"><fo:block>").append(words.text(1 + words.below(4))).append("</fo:block></fo:table-cell>");
                }
                fo.append("</fo:table-row>");
            }
            fo.append("</fo:table-body></fo:table>");
        }
        document = fo.append("<fo:block id=\"end\"/></fo:flow></fo:page-sequence></fo:root>").toString();
    }

    @Override
    public long run() throws Exception {
        FopFactory factory = FopFactory.newInstance(new File(".").toURI());
        FOUserAgent agent = factory.newFOUserAgent();
        agent.setCreationDate(new Date(0));
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        org.apache.fop.apps.Fop fop = factory.newFop(MimeConstants.MIME_PDF, agent, out);
        TransformerFactory.newDefaultInstance().newTransformer().transform(new StreamSource(new StringReader(document)), new SAXResult(fop.getDefaultHandler()));
        // All but the file's identity and dates, which are of the moment.
        String pdf = out.toString(StandardCharsets.ISO_8859_1).replaceAll("/ID \\[[^]]*\\]", "").replaceAll("/(Creation|Mod)Date \\([^)]*\\)", "")
            .replaceAll("\\d{4}-\\d\\d-\\d\\dT[^<\"]*", "");
        CRC32 sum = new CRC32();
        sum.update(pdf.getBytes(StandardCharsets.ISO_8859_1));
        return sum.getValue() * 1000 + fop.getResults().getPageCount();
    }
}
