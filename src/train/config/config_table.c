/* SPDX-License-Identifier: Apache-2.0 */
/* The key table of CONFIG.json: name, type, default, range, choices and documentation of every key.
 * The parser reads it; docs/config.md, the man page fsdptrain-config(5) and the completions of --set are made from
 * it. */
#include "config/config_keys.h"
#include "config/idle.h"

#define AT(field) offsetof(struct train_config, field)

const struct config_section config_sections[] = {
    { "", "Keys at the top level of the file." },
    { "data", "What the run trains on, and how text becomes rows of tokens." },
    { "lora", "The adapter. Names and meanings are those of PEFT. "
              "Without this section, or with null, all parameters are trained." },
    { "train", "Length of the run, batches, learning rate and AdamW." },
    { "fsdp", "How ranks share parameters and gradients, and which activations are recomputed. "
              "These keys change memory, traffic and time, never a result." },
    { "dtype", "Data types of the computation." },
    { "checkpoint", "Checkpoints in output_dir/checkpoints, and what is written when the run ends." },
    { "sample", "Text that the model generates while it trains. It goes to the log and to output_dir/samples." },
    { "log", "Progress and metrics." },
};
const size_t config_nsections = sizeof config_sections / sizeof config_sections[0];

const struct config_key config_keys[] = {
    { .name = "model", .type = KEY_STRING, .offset = AT(model), .required = true,
      .doc = "Hugging Face model folder to start from, or org/name of a model in the local Hugging Face cache." },
    { .name = "output_dir", .type = KEY_STRING, .offset = AT(output_dir), .usual.text = "runs/first",
      .doc = "Folder that the run writes to: checkpoints, metrics, samples, and the adapter or model at the end." },
    { .name = "seed", .type = KEY_U64, .offset = AT(seed), .usual.number = 42, .max = 9007199254740992.0,
      .doc = "Seed of new adapter weights, of dropout, of the order of rows, and of the draw of documents by "
             "weight." },

    { .name = "data.train", .type = KEY_FILES, .offset = AT(data.train), .required = true,
      .doc = "Training data: JSONL or one JSON array, plain, gzip or Zstandard. A weight, above 0 and at most 1000, "
             "says how often an epoch uses each document of its file." },
    { .name = "data.eval", .type = KEY_FILES, .offset = AT(data.eval), .nullable = true,
      .doc = "Evaluation data, in the forms of data.train. The mean loss over it appears in the metrics as "
             "eval_loss." },
    { .name = "data.seq_len", .type = KEY_U64, .offset = AT(data.seq_len), .usual.number = 2048, .min = 1,
      .max = 1 << 24, .idle = idle_by_plan,
      .doc = "Length of a row in tokens. Documents are packed into rows." },
    { .name = "data.packing", .type = KEY_BOOL, .offset = AT(data.packing), .usual.yes = true, .idle = idle_by_plan,
      .doc = "Put several documents into a row where they fit. Documents in one row do not attend to each other." },
    { .name = "data.plan", .type = KEY_STRING, .offset = AT(data.plan), .nullable = true,
      .doc = "JSON file that names the documents of every step, instead of packing and shuffling. Its \"steps\" is "
             "a list of steps; a step is a list of micro-batches, a micro-batch a list of rows, a row a list of "
             "line numbers of data.train, from 0." },
    { .name = "data.loss_on", .type = KEY_CHOICE, .offset = AT(data.loss_on), .usual.text = "assistant",
      .choices = "assistant|last_assistant|completion|all",
      .doc = "Tokens that the loss is computed on. With assistant, these are all turns of the assistant, "
             "completions, and all of a plain text. With last_assistant or completion, only the last turn of a "
             "conversation counts. With all, every token counts." },
    { .name = "data.columns", .type = KEY_COLUMNS, .offset = AT(data.columns), .nullable = true,
      .doc = "Names of the data set's columns, where they differ from the trainer's. {\"prompt\": \"question\"} "
             "reads the column question as the prompt." },
    { .name = "data.date", .type = KEY_STRING, .offset = AT(data.date), .nullable = true,
      .doc = "Date for chat templates that show one, as 2026-11-23. With null, it is the day on which the run first "
             "started." },
    { .name = "data.on_bad_line", .type = KEY_CHOICE, .offset = AT(data.on_bad_line), .usual.text = "stop",
      .choices = "stop|skip",
      .doc = "Handling of a line that cannot be read. With stop, the run ends and names the line. With skip, the "
             "line is skipped and the count is reported." },
    { .name = "data.too_long", .type = KEY_CHOICE, .offset = AT(data.too_long), .usual.text = "cut",
      .choices = "cut|drop", .idle = idle_by_plan,
      .doc = "Handling of a document longer than data.seq_len. With cut, it is truncated. With drop, it is left "
             "out. The count is reported." },

    { .name = "lora.r", .type = KEY_U64, .offset = AT(lora.r), .usual.number = 16, .min = 1, .max = 65536,
      .doc = "Rank of the adapter." },
    { .name = "lora.lora_alpha", .type = KEY_NUMBER, .offset = AT(lora.alpha), .usual.number = 32, .min = -1e30,
      .max = 1e30,
      .doc = "Scale of the adapter. Its product is multiplied by lora_alpha / r." },
    { .name = "lora.lora_dropout", .type = KEY_NUMBER, .offset = AT(lora.dropout), .max = 0.999,
      .doc = "Probability that an element of the adapter's input is dropped in training." },
    { .name = "lora.target_modules", .type = KEY_TARGETS, .usual.text = "all-linear",
      .doc = "Modules that get an adapter. A list names the ends of their paths. A regular expression matches whole "
             "paths. \"all-linear\" selects every linear module but the head." },
    { .name = "lora.use_rslora", .type = KEY_BOOL, .offset = AT(lora.use_rslora),
      .doc = "Use rank-stabilised LoRA: scale by lora_alpha / sqrt(r) instead of lora_alpha / r." },
    { .name = "lora.use_dora", .type = KEY_BOOL, .offset = AT(lora.use_dora),
      .doc = "Use DoRA: also train a magnitude for every output of the adapted linear modules." },
    { .name = "lora.rank_pattern", .type = KEY_PATTERNS, .offset = AT(lora.rank_pattern), .min = 1, .max = 65536,
      .whole = true,
      .doc = "Other ranks for some modules, as {\"down_proj\": 8}. A regular expression matches a whole path, or "
             "its end after a dot. The first match counts." },
    { .name = "lora.alpha_pattern", .type = KEY_PATTERNS, .offset = AT(lora.alpha_pattern), .min = -1e30, .max = 1e30,
      .doc = "Other values of lora_alpha for some modules, by the rule of lora.rank_pattern." },
    { .name = "lora.modules_to_save", .type = KEY_NAMES, .offset = AT(lora.modules_to_save), .nullable = true,
      .doc = "Modules that are trained whole beside the adapter and saved with it, by the ends of their paths: "
             "[\"norm\", \"lm_head\"]." },
    { .name = "lora.init_adapter", .type = KEY_STRING, .offset = AT(lora.init_adapter), .nullable = true,
      .doc = "PEFT folder whose adapter the run starts from, instead of a new one. Its configuration must be that "
             "of this section." },

    { .name = "train.max_steps", .type = KEY_U64, .offset = AT(train.max_steps), .usual.number = 200, .min = 1,
      .max = 1e12,
      .doc = "Number of optimizer steps. It takes precedence over train.num_train_epochs where the file has both." },
    { .name = "train.num_train_epochs", .type = KEY_NUMBER, .offset = AT(train.num_train_epochs), .nullable = true,
      .min = 1e-9, .max = 1e9, .idle = idle_beside_steps,
      .doc = "Number of passes over the training data, rounded up to whole steps. It replaces the default of "
             "train.max_steps." },
    { .name = "train.micro_batch_size", .type = KEY_U64, .offset = AT(train.micro_batch_size), .usual.number = 1,
      .min = 1, .max = 1 << 20, .idle = idle_by_plan,
      .doc = "Number of rows in one forward and backward pass." },
    { .name = "train.gradient_accumulation_steps", .type = KEY_U64, .offset = AT(train.accumulation), .usual.number = 1,
      .min = 1, .max = 1 << 20,
      .doc = "Number of micro-batches whose gradients one rank adds up before ranks exchange them." },
    { .name = "train.global_batch_size", .type = KEY_U64, .offset = AT(train.global_batch_size), .usual.number = 8,
      .min = 1, .max = 1 << 24, .idle = idle_by_plan_of_steps,
      .doc = "Number of rows in one optimizer step, over all ranks." },
    { .name = "train.eval_steps", .type = KEY_U64, .offset = AT(train.eval_steps), .usual.number = 100, .max = 1e12,
      .idle = idle_without_eval,
      .doc = "Number of steps between evaluations of data.eval. The last step is always evaluated. With 0, only the "
             "last step is." },
    { .name = "train.learning_rate", .type = KEY_NUMBER, .offset = AT(train.learning_rate), .usual.number = 2e-4,
      .max = 1e6,
      .doc = "Learning rate at the end of the warm-up." },
    { .name = "train.lr_scheduler_type", .type = KEY_CHOICE, .offset = AT(train.scheduler), .usual.text = "cosine",
      .choices = "cosine|linear|constant", .also = "constant_with_warmup|cosine_with_min_lr",
      .doc = "Learning rate after the warm-up. It falls along a cosine, falls linearly, or stays constant." },
    { .name = "train.warmup_steps", .type = KEY_U64, .offset = AT(train.warmup_steps), .unset = true, .max = 1e12,
      .doc = "Number of steps in which the learning rate rises from 0. It takes precedence over train.warmup_ratio." },
    { .name = "train.warmup_ratio", .type = KEY_NUMBER, .offset = AT(train.warmup_ratio), .usual.number = 0.05,
      .max = 1, .idle = idle_beside_warmup,
      .doc = "Share of the run's steps in which the learning rate rises from 0, rounded up to whole steps." },
    { .name = "train.min_lr_ratio", .type = KEY_NUMBER, .offset = AT(train.min_lr_ratio), .max = 1,
      .idle = idle_when_constant,
      .doc = "Learning rate that the schedule falls to, as a share of train.learning_rate." },
    { .name = "train.adam_beta1", .type = KEY_NUMBER, .offset = AT(train.beta1), .usual.number = 0.9,
      .max = 0.9999999999,
      .doc = "Decay of AdamW's running mean of the gradient." },
    { .name = "train.adam_beta2", .type = KEY_NUMBER, .offset = AT(train.beta2), .usual.number = 0.999,
      .max = 0.9999999999,
      .doc = "Decay of AdamW's running mean of the squared gradient." },
    { .name = "train.adam_epsilon", .type = KEY_NUMBER, .offset = AT(train.epsilon), .usual.number = 1e-8, .max = 1,
      .doc = "Term that AdamW adds to its denominator." },
    { .name = "train.weight_decay", .type = KEY_NUMBER, .offset = AT(train.weight_decay), .max = 1e6,
      .doc = "Decoupled weight decay of AdamW." },
    { .name = "train.weight_decay_on", .type = KEY_CHOICE, .offset = AT(train.weight_decay_on),
      .usual.text = "matrices", .choices = "matrices|all", .idle = idle_without_decay,
      .doc = "Parameters that decay. With matrices, norms and biases do not decay, as in the Hugging Face Trainer. "
             "With all, every trained parameter decays." },
    { .name = "train.max_grad_norm", .type = KEY_NUMBER, .offset = AT(train.max_grad_norm), .usual.number = 1,
      .nullable = true, .max = 1e30,
      .doc = "Global norm that gradients are clipped to. With 0 or null, they are not clipped." },
    { .name = "train.on_nonfinite", .type = KEY_CHOICE, .offset = AT(train.on_nonfinite), .usual.text = "stop",
      .choices = "stop|skip",
      .doc = "Handling of a loss or gradient that is not finite. With stop, the run ends. With skip, the step "
             "leaves the weights alone and the run continues." },

    { .name = "fsdp.sharding_strategy", .type = KEY_CHOICE, .offset = AT(fsdp.strategy), .usual.text = "FULL_SHARD",
      .choices = "FULL_SHARD|SHARD_GRAD_OP|NO_SHARD", .later = "HYBRID_SHARD|HYBRID_SHARD_ZERO2",
      .idle = idle_unless_gathered,
      .doc = "How long gathered parameters stay in memory. FULL_SHARD releases them after use. SHARD_GRAD_OP keeps "
             "them for a step. NO_SHARD keeps them for the run." },
    { .name = "fsdp.reshard_after_forward", .type = KEY_BOOL, .offset = AT(fsdp.reshard_after_forward),
      .usual.yes = true, .idle = idle_unless_full_shard,
      .doc = "Under FULL_SHARD, release parameters after the forward pass and gather them again for the backward "
             "pass." },
    { .name = "fsdp.forward_prefetch", .type = KEY_U64, .offset = AT(fsdp.forward_prefetch), .usual.number = 1,
      .max = 1024, .idle = idle_unless_sharded,
      .doc = "Number of parameter groups (blocks) that are gathered ahead of their use in the forward pass." },
    { .name = "fsdp.backward_prefetch", .type = KEY_U64, .offset = AT(fsdp.backward_prefetch), .usual.number = 1,
      .max = 1024, .idle = idle_unless_sharded,
      .doc = "Number of parameter groups (blocks) that are gathered ahead of their use in the backward pass." },
    { .name = "fsdp.activation_checkpointing", .type = KEY_CHOICE, .offset = AT(fsdp.checkpointing),
      .usual.text = "none", .choices = "none|block|auto",
      .doc = "Blocks whose activations are recomputed in the backward pass. With block, these are all blocks. With "
             "auto, they are the fewest that let the run fit into the available memory." },
    { .name = "fsdp.reduction", .type = KEY_CHOICE, .offset = AT(fsdp.reduction), .usual.text = "invariant",
      .choices = "invariant", .later = "fast",
      .doc = "How gradients are summed over ranks. With invariant, the order is fixed, and the bits are the same "
             "for any number of ranks." },

    { .name = "dtype.param", .type = KEY_CHOICE, .offset = AT(dtype.param), .usual.text = "bf16",
      .choices = "bf16|fp32", .later = "fp16",
      .doc = "Type in which parameters are gathered and used. With bf16, trained parameters have fp32 masters." },
    { .name = "dtype.reduce", .type = KEY_CHOICE, .offset = AT(dtype.reduce), .usual.text = "fp32",
      .choices = "bf16|fp32", .later = "fp16",
      .doc = "Type to which gradients are rounded before ranks exchange them. They are summed in fp32." },
    { .name = "dtype.output", .type = KEY_CHOICE, .offset = AT(dtype.output), .usual.text = "fp32",
      .choices = "bf16|fp32", .later = "fp16",
      .doc = "Type to which logits are rounded before the loss." },

    { .name = "checkpoint.save_steps", .type = KEY_U64, .offset = AT(checkpoint.save_steps), .usual.number = 100,
      .max = 1e12,
      .doc = "Number of steps between checkpoints. The run also saves after the last step and when it is stopped. "
             "With 0, it saves only then." },
    { .name = "checkpoint.keep_last", .type = KEY_U64, .offset = AT(checkpoint.keep_last), .usual.number = 3,
      .max = 1e9,
      .doc = "Number of newest checkpoints to keep. Older ones are removed after each save. With 0, all are kept." },
    { .name = "checkpoint.export_adapter", .type = KEY_BOOL, .offset = AT(checkpoint.export_adapter), .usual.yes = true,
      .idle = idle_without_lora,
      .doc = "Write the adapter to output_dir/adapter, as a PEFT folder, when a LoRA run ends or is stopped." },
    { .name = "checkpoint.export_model", .type = KEY_BOOL, .offset = AT(checkpoint.export_model), .usual.yes = true,
      .idle = idle_with_lora,
      .doc = "Write the model to output_dir/model, as a Hugging Face folder, after the last step of a run that "
             "trains all parameters." },

    { .name = "sample.every", .type = KEY_U64, .offset = AT(sample.every), .max = 1e12,
      .doc = "Number of steps between samples. The last step is sampled too. With 0, samples are made only on "
             "request: `echo sample > output_dir/control`." },
    { .name = "sample.prompts", .type = KEY_PROMPTS, .offset = AT(sample.prompts), .idle = idle_until_asked,
      .doc = "Prompts to continue greedily, by at most 128 tokens each. A string is a user's message where the "
             "model has a chat template. The other forms are taken as they are." },

    { .name = "log.every", .type = KEY_U64, .offset = AT(log.every), .usual.number = 1, .min = 1, .max = 1e9,
      .doc = "Number of steps between lines of progress. Evaluations and the last step are always shown." },
    { .name = "log.jsonl", .type = KEY_STRING, .offset = AT(log.jsonl), .usual.text = "metrics.jsonl",
      .doc = "File in output_dir that gets one JSON object for each step." },
};
const size_t config_nkeys = sizeof config_keys / sizeof config_keys[0];
