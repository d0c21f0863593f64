/* SPDX-License-Identifier: Apache-2.0 */
/* embed NAME FILE: writes C source that defines the bytes of FILE as `const unsigned char NAME[]`, with a zero after
 * them. The build runs it. */
#include <stdio.h>

int main(int argc, char **argv)
{
    FILE *f = argc == 3 ? fopen(argv[2], "rb") : NULL;
    int c;
    if (!f) {
        fprintf(stderr, "usage: embed NAME FILE\n");
        return 2;
    }
    printf("extern const unsigned char %s[];\nconst unsigned char %s[] = {", argv[1], argv[1]);
    while ((c = getc(f)) != EOF)
        printf("%d,", c);
    puts("0};");
    const int failed = ferror(f) | ferror(stdout);
    return fclose(f) || fclose(stdout) || failed;
}
