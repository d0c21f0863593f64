/* Templates: errors by line, what is not known by name, caps; and which tokens are the assistant's where a template says so itself, or renders turns otherwise
 * when others follow. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <train/chat.h>

#include "text/jinja.h"

static void expect_error(const char *source, int code, const char *words)
{
    struct fsdpck_error err = { 0 };
    struct jinja *j;
    struct jinja_output out = { 0 };
    json_t *context = json_pack("{s:[{s:s,s:s}],s:i}", "messages", "role", "user", "content", "hi", "x", 5);
    int rc = jinja_parse("t.jinja", source, strlen(source), &j, &err);
    if (!rc)
        rc = jinja_render(j, context, 0, &out, &err);
    assert_int_equal(rc, code);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not hold '%s'", err.message, words);
    jinja_output_free(&out);
    jinja_free(j);
    json_decref(context);
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("a\n{{ x | nope }}", FSDPCK_ERR_UNSUPPORTED, "line 2 of the template: the filter 'nope' is not in this version");
    expect_error("{{ x is nope }}", FSDPCK_ERR_UNSUPPORTED, "the test 'nope' is not in this version");
    expect_error("{{ 'x'.nope() }}", FSDPCK_ERR_UNSUPPORTED, "the method 'nope' of a string is not in this version");
    expect_error("\n\n{% raw %}", FSDPCK_ERR_UNSUPPORTED, "line 3 of the template: {% raw %}");
    expect_error("{% include 'x' %}", FSDPCK_ERR_FORMAT, "'include' found");
    expect_error("{% if x %}", FSDPCK_ERR_FORMAT, "endif wanted");
    expect_error("{% for a in x", FSDPCK_ERR_FORMAT, "a tag does not end");
    expect_error("{{ 'x }}", FSDPCK_ERR_FORMAT, "a string does not end");
    expect_error("{{ messages[0].nope.more }}", FSDPCK_ERR_FORMAT, "'nope' is undefined");
    expect_error("{{ raise_exception('Only\n' + messages[0].role) }}", FSDPCK_ERR_FORMAT, "Only\nuser");
    expect_error("{{ 1 // 0 }}", FSDPCK_ERR_FORMAT, "division by zero");
    expect_error("{{ 9223372036854775807 + 1 }}", FSDPCK_ERR_FORMAT, "a number is too large");
    expect_error("{% break %}", FSDPCK_ERR_FORMAT, "a loop around it");
    expect_error("{% set x.y = 1 %}", FSDPCK_ERR_FORMAT, "'x' is no namespace");
    expect_error("{{ '\xff' }}", FSDPCK_ERR_FORMAT, "no UTF-8");
}

static void test_caps(void **state)
{
    (void)state;
    char deep[20000];
    strcpy(deep, "{% for a in range(10000) %}");
    for (int i = 0; i < 500; i++)
        strcat(deep, "{% if not x %}{% endif %}");
    strcat(deep, "{% endfor %}");
    expect_error(deep, FSDPCK_ERR_LIMIT, "it takes more than");
    expect_error("{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for a in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", FSDPCK_ERR_LIMIT, "it makes values of more than");
    expect_error("{% set s = 'a' * 1000000 %}{% for a in range(100) %}{{ s }}{% endfor %}", FSDPCK_ERR_LIMIT, "it writes more than");
    expect_error("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", FSDPCK_ERR_LIMIT, "calls itself");
    memset(deep, '(', 5000);
    memcpy(deep, "{{ ", 3);
    strcpy(deep + 5000, " }}");
    expect_error(deep, FSDPCK_ERR_FORMAT, "less nesting");
    deep[0] = '\0';
    for (int i = 0; i < 500; i++)
        strcat(deep, "{% if x %}");
    expect_error(deep, FSDPCK_ERR_FORMAT, "less nesting");
}

/* A folder with a tokenizer of the goldens and this template. */
static struct chat *open_chat(const char *template, char folder[200])
{
    char path[400], target[1000];
    struct fsdpck_error err = { 0 };
    struct chat *c;
    snprintf(folder, 200, "%s/fsdpck-template-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    snprintf(target, sizeof target, "%s/qwen2/tokenizer.json", getenv("FSDPCK_TEXT_GOLDENS"));
    assert_int_equal(symlink(target, path), 0);
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    FILE *f = fopen(path, "we");
    assert_true(f && fputs(template, f) >= 0 && fclose(f) == 0);
    if (chat_open(folder, &c, &err))
        fail_msg("%s", err.message);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    rmdir(folder);
    return c;
}

/* The text of the supervised tokens, "|" between those that do not follow each other. */
static void supervised_text(const char *template, const char *messages, enum chat_loss loss, const char *want)
{
    char folder[200], got[1000] = "";
    struct fsdpck_error err = { 0 };
    struct chat *c = open_chat(template, folder);
    struct chat_coder *w;
    struct chat_tokens tokens;
    json_t *example = json_pack("{s:o}", "messages", json_loads(messages, 0, NULL));
    assert_int_equal(chat_coder_new(c, &w, &err), 0);
    if (chat_encode(w, example, loss, &tokens, &err))
        snprintf(got, sizeof got, "%s", err.message);
    for (size_t i = 0; i < tokens.count; i++) {
        char *text;
        size_t n;
        if (!tokens.supervised[i] && i && tokens.supervised[i - 1])
            strcat(got, "|");
        if (!tokens.supervised[i])
            continue;
        assert_int_equal(tokenizer_decode(chat_tokenizer(c), &tokens.ids[i], 1, false, &text, &n, &err), 0);
        strcat(got, text);
        free(text);
    }
    if (!strstr(got, want) || (!err.code && strcmp(got, want) != 0))
        fail_msg("supervised '%s', wanted '%s'", got, want);
    json_decref(example);
    chat_coder_free(w);
    chat_close(c);
}

#define TWO_TURNS "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"one\"},{\"role\":\"user\",\"content\":\"so\"},{\"role\":\"assistant\",\"content\":\"two\"}]"

static void test_generation(void **state)
{
    (void)state;
    static const char template[] = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n\n{% endfor %}";
    supervised_text(template, TWO_TURNS, CHAT_LOSS_ASSISTANT, "one<|im_end|>|two<|im_end|>|");
    supervised_text(template, TWO_TURNS, CHAT_LOSS_LAST_ASSISTANT, "two<|im_end|>|");
}

/* As templates of models that reason do it: the last turn has a (here empty) thought in front, earlier ones have none. */
static void test_thoughts(void **state)
{
    (void)state;
    static const char template[] = "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>{% endif %}{{ m.content }}<|im_end|>\n\n{% endfor %}"
                                   "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";
    supervised_text(template, TWO_TURNS, CHAT_LOSS_ASSISTANT, "one<|im_end|>|<think>\n\n</think>two<|im_end|>|");
    supervised_text(template, TWO_TURNS, CHAT_LOSS_LAST_ASSISTANT, "<think>\n\n</think>two<|im_end|>|");
}

/* Where nothing says which tokens a turn has, it is refused instead of guessed. */
static void test_unclear(void **state)
{
    (void)state;
    supervised_text("{% for m in messages %}{{ messages | length }}{{ m.role }}{% if loop.last %}{{ m.content }}{% else %}?{% endif %}{% endfor %}", TWO_TURNS, CHAT_LOSS_ASSISTANT,
                    "message 1: the template renders this turn otherwise");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_caps),    cmocka_unit_test(test_generation),
        cmocka_unit_test(test_thoughts), cmocka_unit_test(test_unclear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
