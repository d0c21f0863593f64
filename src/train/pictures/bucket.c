/* SPDX-License-Identifier: Apache-2.0 */
#include "pictures/bucket.h"

#include <math.h>
#include <stdbool.h>

static int64_t distance(int64_t a, double b)
{
    return (int64_t)fabs((double)a - b);
}

/* Of the sizes around the wanted one the nearest in pixels, of equals the first; smaller before larger. */
static void choose(double rows, double cols, double target, int64_t most, int64_t divisor, struct bucket *b)
{
    const int64_t h[] = { (int64_t)floor(rows) * divisor, (int64_t)ceil(rows) * divisor },
                  w[] = { (int64_t)floor(cols) * divisor, (int64_t)ceil(cols) * divisor };
    bool found = false;
    for (int i = 0; i < 4; i++) {
        const int64_t height = h[i % 2], width = w[i / 2];
        if (height < 1 || width < 1 || height * width > most)
            continue;
        if (!found || distance(height * width, target) < distance(b->height * b->width, target)) {
            b->height = height;
            b->width = width;
        }
        found = true;
    }
    if (!found) {
        b->height = h[0] > divisor ? h[0] : divisor;
        b->width = w[0] > divisor ? w[0] : divisor;
    }
}

struct bucket bucket_of(int64_t height, int64_t width, int64_t resolution, int64_t divisor)
{
    const int64_t most = resolution * resolution, has = height * width;
    const double target = (double)(has < most ? has : most), scale = sqrt(target / (double)has);
    struct bucket b = { 0 };
    choose((double)height * scale / (double)divisor, (double)width * scale / (double)divisor, target, most, divisor,
           &b);
    const double across = (double)b.width / (double)width, down = (double)b.height / (double)height,
                 cover = across > down ? across : down;
    b.scaled_width = (int64_t)ceil((double)width * cover);
    b.scaled_height = (int64_t)ceil((double)height * cover);
    b.top = (b.scaled_height - b.height) / 2;
    b.left = (b.scaled_width - b.width) / 2;
    return b;
}
