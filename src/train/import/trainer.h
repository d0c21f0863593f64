/* SPDX-License-Identifier: Apache-2.0 */
/* Translations of a Trainer's arguments that need more than a row. */
#ifndef TRAIN_IMPORT_TRAINER_H
#define TRAIN_IMPORT_TRAINER_H

#include "import/import.h"

/* Length, schedule, saves, evaluations. */
import_take trainer_max_steps, trainer_epochs, trainer_scheduler, trainer_scheduler_kwargs, trainer_warmup_steps,
    trainer_warmup_ratio, trainer_optim, trainer_logging_steps, trainer_report_to, trainer_eval_strategy,
    trainer_eval_steps, trainer_save_strategy, trainer_save_steps, trainer_save_limit, trainer_data_seed;
/* Precision and FSDP. */
import_take trainer_bf16, trainer_fp16, trainer_checkpointing, trainer_fsdp, trainer_fsdp_config, trainer_fsdp_version;
/* Data and adapters: TRL and axolotl. */
import_take trainer_dataset, trainer_datasets, trainer_text_field, trainer_assistant_loss, trainer_completion_loss,
    trainer_train_on_inputs, trainer_use_peft, trainer_adapter, trainer_lora, trainer_target_modules,
    trainer_target_parameters, trainer_target_linear, trainer_4bit;

/* The batch of all ranks. */
void trainer_finish(struct importer *im);
/* The same for arguments that say nothing about rows. */
void trainer_finish_plain(struct importer *im);

#endif
