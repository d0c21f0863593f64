/* SPDX-License-Identifier: Apache-2.0 */
/* The page is a style, scripts and data. The scripts make text nodes from the data, so that no text from a file can be
 * markup; here only the data must not end their element. */
#include "common/page_out.h"

static const char head[] =
    PAGE_HEAD "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
              "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
              "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">\n"
              "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
static const char empty[] = "<main id=\"page\"><noscript><p>A script in this file draws the page. The numbers are in "
                            "the element <code>data</code>.</p></noscript></main>\n";

/* "<" is \u003c: it can stand only in strings. */
static int put_escaped(const char *text, size_t nbytes, void *file)
{
    for (size_t i = 0; i < nbytes; i++)
        if (text[i] == '<' ? fputs("\\u003c", file) == EOF : putc(text[i], file) == EOF)
            return -1;
    return 0;
}

static void put_script(FILE *f, const unsigned char *script)
{
    fputs("<script>\n", f);
    fputs((const char *)script, f);
    fputs("</script>\n", f);
}

bool page_out(FILE *f, const char *title, json_t *data, const unsigned char *const *scripts)
{
    fputs(head, f);
    fprintf(f, "<title>%s</title>\n<style>\n", title);
    fputs((const char *)page_base_css, f);
    fputs("</style>\n</head>\n<body>\n", f);
    fputs(empty, f);
    fputs("<script type=\"application/json\" id=\"data\">", f);
    const bool ok = data && (json_dump_callback(data, put_escaped, f, JSON_COMPACT) == 0 || ferror(f));
    fputs("</script>\n", f);
    put_script(f, page_base_js);
    for (; *scripts; scripts++)
        put_script(f, *scripts);
    fputs("</body>\n</html>\n", f);
    json_decref(data);
    return ok;
}
