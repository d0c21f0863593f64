/* SPDX-License-Identifier: Apache-2.0 */
/* Templates: errors name the line and the unknown word; caps; and the tokens of the assistant, in templates that mark
 * them and in templates that render a turn differently when others follow. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <train/chat.h>

#include "text/jinja/jinja.h"

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
    expect_error("a\n{{ x | nope }}", FSDPCK_ERR_UNSUPPORTED,
                 "line 2 of the template: the filter 'nope' is not in this version");
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
    expect_error("{% set f = messages[0].keys %}{{ f() }}", FSDPCK_ERR_UNSUPPORTED,
                 "calling the method 'keys' without the value before it");
    expect_error("{% set f = range %}{{ f(3) }}", FSDPCK_ERR_UNSUPPORTED,
                 "a range has no text in this version: write \"| list\" behind it");
    expect_error("{{ messages[0].keys }}", FSDPCK_ERR_UNSUPPORTED, "the text of a function ('keys')");
    expect_error("{% set i = messages | reverse %}{{ i | first }}{{ i | list }}", FSDPCK_ERR_UNSUPPORTED,
                 "gone through a second time");
    expect_error("{% macro m(a) %}{{ varargs }}{% endmacro %}", FSDPCK_ERR_UNSUPPORTED, "'varargs' in a macro");
    expect_error("{% macro m(a, b) %}{% endmacro %}{{ m(1, a=2) }}", FSDPCK_ERR_FORMAT,
                 "macro 'm' takes no argument 'a', or has it already");
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
    expect_error("{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for a in range(40) %}{% set ns.s = ns.s + ns.s %}{% "
                 "endfor %}",
                 FSDPCK_ERR_LIMIT, "it makes values of more than");
    expect_error("{% set s = 'a' * 1000000 %}{% for a in range(100) %}{{ s }}{% endfor %}", FSDPCK_ERR_LIMIT,
                 "it writes more than");
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

/* Writes a folder with a tokenizer of the goldens and this template, and opens it. */
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

/* Compares the text of the supervised tokens; "|" separates tokens that are not adjacent. Returns the notes. */
static unsigned supervised_text(const char *template, const char *messages, enum chat_loss loss, const char *want)
{
    char folder[200], got[1000] = "";
    struct fsdpck_error err = { 0 };
    struct chat *c = open_chat(template, folder);
    struct chat_coder *w;
    struct chat_tokens tokens;
    json_t *example = messages[0] == '{' ? json_loads(messages, 0, NULL)
                                         : json_pack("{s:o}", "messages", json_loads(messages, 0, NULL));
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
    unsigned notes = tokens.notes;
    json_decref(example);
    chat_coder_free(w);
    chat_close(c);
    return notes;
}

#define TWO_TURNS \
    "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"one\"},{\"role\":\"user\"," \
    "\"content\":\"so\"},{\"role\":\"assistant\",\"content\":\"two\"}]"

static void test_generation(void **state)
{
    (void)state;
    static const char template[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content "
        "}}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n\n{% endfor %}";
    supervised_text(template, TWO_TURNS, CHAT_LOSS_ASSISTANT, "one<|im_end|>|two<|im_end|>|");
    supervised_text(template, TWO_TURNS, CHAT_LOSS_LAST_ASSISTANT, "two<|im_end|>|");
}

/* Like templates of reasoning models: the last turn starts with a thought (here empty), earlier turns have none. */
static void test_thoughts(void **state)
{
    (void)state;
    static const char template[] = "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.role == 'assistant' and "
                                   "loop.last %}<think>\n\n</think>{% endif %}{{ m.content }}<|im_end|>\n\n{% endfor %}"
                                   "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";
    supervised_text(template, TWO_TURNS, CHAT_LOSS_ASSISTANT, "one<|im_end|>|<think>\n\n</think>two<|im_end|>|");
    supervised_text(template, TWO_TURNS, CHAT_LOSS_LAST_ASSISTANT, "<think>\n\n</think>two<|im_end|>|");
}

/* If it is unclear which tokens belong to a turn, the template is refused. */
static void test_unclear(void **state)
{
    (void)state;
    supervised_text("{% for m in messages %}{{ messages | length }}{{ m.role }}{% if loop.last %}{{ m.content }}{% "
                    "else %}?{% endif %}{% endfor %}",
                    TWO_TURNS, CHAT_LOSS_ASSISTANT, "message 1: the template renders this turn otherwise");
    supervised_text("{% for m in messages %}{{ m.role }}:{% if loop.last %}{{ m.content }}{% else %}?{% endif %}{% "
                    "endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
                    TWO_TURNS, CHAT_LOSS_LAST_ASSISTANT, "two");
}

#define SYSTEM_TURN "{\"role\":\"system\",\"content\":\"be kind\"},"
#define CALL(name)  "\"tool_calls\":[{\"function\":{\"name\":\"" name "\",\"arguments\":{\"a\":1}}}]"
#define TOOL_TURNS \
    "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":null," CALL( \
        "look") "},{\"role\":\"tool\",\"content\":\"7\"},{\"role\":\"assistant\",\"content\":\"seven\"}]"

/* The last turn starts with an empty thought, even if it calls a tool and is not last any more (like Qwen 3). */
static void test_calls(void **state)
{
    (void)state;
    static const char template[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and (loop.last or "
        "m.reasoning_content) %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
        "{% for t in m.tool_calls or [] %}{% if m.content %}\n{% endif %}<tool_call>\n{\"name\": \"{{ t.function.name "
        "}}\", \"arguments\": {{ t.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    supervised_text(template, TOOL_TURNS, CHAT_LOSS_ASSISTANT,
                    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"a\": "
                    "1}}\n</tool_call><|im_end|>|<think>\n\n</think>\n\nseven<|im_end|>|");
    supervised_text(template, TOOL_TURNS, CHAT_LOSS_LAST_ASSISTANT, "<think>\n\n</think>\n\nseven<|im_end|>|");
    static const char ignores[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}{% if "
        "add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    supervised_text(ignores, TOOL_TURNS, CHAT_LOSS_ASSISTANT,
                    "message 1 calls the tool 'look', and the chat template does not show tool_calls");
    supervised_text(ignores, TOOL_TURNS, CHAT_LOSS_ALL, "message 1 calls the tool 'look'");
    supervised_text(ignores, TOOL_TURNS, CHAT_LOSS_LAST_ASSISTANT, "seven<|im_end|>|");
    assert_int_equal(supervised_text(ignores, "{\"tools\":[{\"name\":\"look\"}],\"messages\":" TWO_TURNS "}",
                                     CHAT_LOSS_ASSISTANT, "one<|im_end|>|two<|im_end|>|"),
                     1u << CHAT_NOTE_TOOLS);
    assert_int_equal(supervised_text(ignores,
                                     "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":"
                                     "\"one\",\"reasoning\":\"so and so\"}]",
                                     CHAT_LOSS_ASSISTANT, "one<|im_end|>|"),
                     1u << CHAT_NOTE_REASONING);
}

/* The system turn is rendered inside the last user message, as long as that is the last of all (like Mistral). The
 * answer begins where its prompt ends. */
static void test_moved_system(void **state)
{
    (void)state;
    static const char template[] = "{% set rest = messages[1:] %}<s>{% for m in rest %}{% if m.role == 'user' %}[INST] "
                                   "{% if loop.last %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]"
                                   "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}";
    supervised_text(template,
                    "[" SYSTEM_TURN
                    "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"one\"}]",
                    CHAT_LOSS_ASSISTANT, " one</s>");
    supervised_text(template,
                    "[" SYSTEM_TURN
                    "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"one\"},{\"role\":"
                    "\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"one\"}]",
                    CHAT_LOSS_ASSISTANT, " one</s>| one</s>");
}

/* A conversation with another end than an inner turn (like Phi 3). */
static void test_other_end(void **state)
{
    (void)state;
    static const char template[] = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|im_end|>\n{% endfor %}{% "
                                   "if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}";
    supervised_text(template, TWO_TURNS, CHAT_LOSS_ASSISTANT, "one<|im_end|>|two<|im_end|>\n<|endoftext|>");
}

/* Several blocks in a turn, one of which begins inside a token, give the mask of transformers. */
static void test_generation_blocks(void **state)
{
    (void)state;
    static const char template[] =
        "{% for m in messages %}<{{ m.role }}>:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% "
        "endgeneration %}!{% generation %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n\n"
        "{% endfor %}{% if add_generation_prompt %}<assistant>:{% endif %}";
    supervised_text(template, TWO_TURNS, CHAT_LOSS_ASSISTANT, "one|<|im_end|>|two|<|im_end|>|");
    supervised_text(template, TWO_TURNS, CHAT_LOSS_LAST_ASSISTANT, "two|<|im_end|>|");
    supervised_text(
        "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% endfor %}",
        "[{\"role\":\"assistant\",\"content\":\"the\"}]", CHAT_LOSS_ASSISTANT, " the<|im_end|>");
    assert_int_equal(
        supervised_text("{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}{% if "
                        "add_generation_prompt %}assistant: {% endif %}",
                        "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"the\"}]",
                        CHAT_LOSS_ASSISTANT, "<|im_end|>"),
        1u << CHAT_NOTE_ACROSS);
}

static void rendered(const char *messages, const char *want)
{
    static const char template[] = "{% for m in messages %}{{ m.keys() | list | join(',') }}={{ m.reasoning_content "
                                   "}}/{{ m.thinking }};{% endfor %}";
    char folder[200], *text;
    size_t n;
    struct fsdpck_error err = { 0 };
    struct chat *c = open_chat(template, folder);
    struct chat_coder *w;
    json_t *list = json_loads(messages, 0, NULL);
    assert_int_equal(chat_coder_new(c, &w, &err), 0);
    assert_int_equal(chat_render(w, list, NULL, false, &text, &n, &err), 0);
    assert_string_equal(text, want);
    free(text);
    json_decref(list);
    chat_coder_free(w);
    chat_close(c);
}

/* Rendered like apply_chat_template of transformers 5.23. */
static void test_message_keys(void **state)
{
    (void)state;
    rendered("[{\"role\":\"a\",\"reasoning\":\"x\"}]", "thinking,role,reasoning,reasoning_content=x/x;");
    rendered("[{\"role\":\"a\",\"thinking\":\"x\",\"reasoning\":\"y\"}]",
             "thinking,role,reasoning,reasoning_content=x/x;");
    rendered("[{\"role\":\"a\",\"reasoning_content\":\"x\"}]", "thinking,role,reasoning_content=x/x;");
    rendered("[{\"role\":\"a\",\"thinking\":\"t\",\"reasoning_content\":\"x\"}]",
             "thinking,role,reasoning_content=x/t;");
    rendered("[{\"role\":\"a\",\"reasoning_content\":null,\"content\":\"\"}]", "role,content=/;");
    rendered("[{\"thinking\":null,\"role\":\"a\",\"reasoning\":\"x\",\"content\":null}]",
             "thinking,role,reasoning,reasoning_content=x/x;");
}

/* Turns without content and invalid messages or tools are refused, whatever is trained on. Tools may be JSON in a
 * string. */
static void test_forms(void **state)
{
    (void)state;
    static const char template[] = "{% for t in tools or [] %}<{{ t.name }}>{% endfor %}{% for m in messages "
                                   "%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                                   "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    static const char *const bad[][2] = {
        { "{\"messages\":\"hi\"}", "'messages' is no list of at least one message" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":null}]}",
          "message 1 has a role and nothing else" },
        { "{\"messages\":[{\"content\":\"hi\"}]}", "message 0 has no role" },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"hi\"}],\"tools\":\"get\"}",
          "'tools' is neither a list of objects nor the JSON of one in a string" },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"hi\"}],\"tools\":{\"name\":\"f\"}}",
          "'tools' is neither" },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"hi\"}],\"tools\":[\"f\"]}",
          "'tools': entry 0 is no object" },
        { "{\"instruction\":\"hi\",\"output\":\"ho\",\"system\":5}", "'system' is no string" },
    };
    for (size_t i = 0; i < 2 * sizeof bad / sizeof bad[0]; i++)
        supervised_text(template, bad[i / 2][0], i % 2 ? CHAT_LOSS_ALL : CHAT_LOSS_ASSISTANT, bad[i / 2][1]);
    supervised_text(template,
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":\"[{\\\"name\\\":\\\"f\\\"}]\"}",
                    CHAT_LOSS_ALL, "<f><|im_start|>user\nhi<|im_end|>\n");
    supervised_text(template, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":\"\"}", CHAT_LOSS_ALL,
                    "<|im_start|>user\nhi<|im_end|>\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_caps),      cmocka_unit_test(test_generation),
        cmocka_unit_test(test_thoughts),     cmocka_unit_test(test_unclear),   cmocka_unit_test(test_calls),
        cmocka_unit_test(test_moved_system), cmocka_unit_test(test_other_end), cmocka_unit_test(test_generation_blocks),
        cmocka_unit_test(test_message_keys), cmocka_unit_test(test_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
