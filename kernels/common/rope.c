/* SPDX-License-Identifier: Apache-2.0 */
/* Frequencies and tables of rotary positions, on the host in fp64. Each scaling follows transformers'
 * modeling_rope_utils. */
#include <kernels/rope.h>

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Low frequencies are stretched, high ones are unchanged, those between are interpolated. */
static double llama3_frequency(const struct kern_rope *r, double inv_freq)
{
    double wavelength = 2 * pi / inv_freq;
    if (wavelength > r->original_max_position / r->low_freq_factor)
        return inv_freq / r->factor;
    if (wavelength < r->original_max_position / r->high_freq_factor)
        return inv_freq;
    double smooth =
        (r->original_max_position / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * inv_freq / r->factor + smooth * inv_freq;
}

/* The (fractional) feature that makes `turns` full rotations over the original context. */
static double yarn_dimension(const struct kern_rope *r, double turns)
{
    return (double)r->dim * log(r->original_max_position / (turns * 2 * pi)) / (2 * log(r->theta));
}

static double yarn_frequency(const struct kern_rope *r, double inv_freq, int64_t j)
{
    double low = yarn_dimension(r, r->beta_fast), high = yarn_dimension(r, r->beta_slow);
    if (!r->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)r->dim - 1);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax(((double)j - low) / (high - low), 0), 1);
    return inv_freq / r->factor * ramp + inv_freq * (1 - ramp);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention(const struct kern_rope *r)
{
    if (r->attention_factor != 0)
        return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

double kern_rope_frequencies(const struct kern_rope *rope, double *inv_freq)
{
    for (int64_t j = 0; j < rope->dim / 2; j++) {
        double f = pow(rope->theta, -2.0 * (double)j / (double)rope->dim);
        switch (rope->kind) {
        case KERN_ROPE_DEFAULT: break;
        case KERN_ROPE_LINEAR: f /= rope->factor; break;
        case KERN_ROPE_LLAMA3: f = llama3_frequency(rope, f); break;
        case KERN_ROPE_YARN: f = yarn_frequency(rope, f, j); break;
        }
        inv_freq[j] = f;
    }
    return rope->kind == KERN_ROPE_YARN ? yarn_attention(rope) : 1;
}

void kern_rope_tables(const struct kern_rope *rope, int64_t npos, float *cosines, float *sines, double *scratch)
{
    double factor = kern_rope_frequencies(rope, scratch);
    for (int64_t i = 0; i < npos; i++)
        for (int64_t j = 0; j < rope->dim / 2; j++) {
            double angle = (double)i * scratch[j];
            cosines[i * (rope->dim / 2) + j] = (float)(cos(angle) * factor);
            sines[i * (rope->dim / 2) + j] = (float)(sin(angle) * factor);
        }
}
