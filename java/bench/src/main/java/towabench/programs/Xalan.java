package towabench.programs;

import java.io.StringReader;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.zip.CRC32;
import javax.xml.transform.Templates;
import javax.xml.transform.TransformerFactory;
import javax.xml.transform.stream.StreamResult;
import javax.xml.transform.stream.StreamSource;

/** Xalan's interpreter: a generated catalogue of books to HTML, with keys, sorting, grouping and numbering. */
public final class Xalan implements Program {
    private static final String SHEET = """
        <xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
        <xsl:output method="html" indent="yes"/>
        <xsl:key name="by-author" match="book" use="@author"/>
        <xsl:template match="/catalogue"><html><body><h1>Books: <xsl:value-of select="count(book)"/></h1>
          <xsl:for-each select="book[generate-id() = generate-id(key('by-author', @author)[1])]"><xsl:sort select="@author"/>
            <h2><xsl:number value="position()" format="I. "/><xsl:value-of select="@author"/></h2>
            <table><xsl:apply-templates select="key('by-author', @author)"><xsl:sort select="price" data-type="number" order="descending"/></xsl:apply-templates>
            <tr><td>all</td><td><xsl:value-of select="format-number(sum(key('by-author', @author)/price), '#,##0.00')"/></td></tr></table>
          </xsl:for-each></body></html></xsl:template>
        <xsl:template match="book"><tr><xsl:attribute name="class"><xsl:choose><xsl:when test="position() mod 2 = 0">even</xsl:when><xsl:otherwise>odd</xsl:otherwise></xsl:choose></xsl:attribute>
          <td><xsl:call-template name="upper"><xsl:with-param name="text" select="title"/></xsl:call-template></td><td><xsl:value-of select="price"/></td>
          <td><xsl:value-of select="substring(normalize-space(text), 1, 60)"/> (<xsl:value-of select="string-length(text)"/>)</td></tr></xsl:template>
        <xsl:template name="upper"><xsl:param name="text"/><xsl:value-of select="translate($text, 'abcdefghijklmnopqrstuvwxyz', 'ABCDEFGHIJKLMNOPQRSTUVWXYZ')"/></xsl:template>
        </xsl:stylesheet>
        """;

    private String document;
    private int times;

    @Override
    public void prepare(Path scratch, int size) {
        Words words = new Words(7, 2000);
        StringBuilder xml = new StringBuilder("<?xml version=\"1.0\"?><catalogue>");
        for (int i = 0; i < Math.min(1500, size * 150); i++) {
            xml.append("<book author=\"").append("author ").append(words.below(90)).append("\"><title>").append(words.text(5)).append("</title><price>")
                .append(words.below(90)).append('.').append(10 + words.below(90)).append("</price><text>").append(words.text(40)).append("</text></book>");
        }
        document = xml.append("</catalogue>").toString();
        times = Math.max(1, size * 6 / 10);
    }

    @Override
    public long run() throws Exception {
        CRC32 sum = new CRC32();
        Templates sheet = TransformerFactory.newInstance("org.apache.xalan.processor.TransformerFactoryImpl", null)
            .newTemplates(new StreamSource(new StringReader(SHEET)));
        for (int i = 0; i < times; i++) {
            StringWriter out = new StringWriter();
            sheet.newTransformer().transform(new StreamSource(new StringReader(document)), new StreamResult(out));
            sum.update(out.toString().getBytes(StandardCharsets.UTF_8));
        }
        return sum.getValue();
    }
}
