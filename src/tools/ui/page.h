/* SPDX-License-Identifier: Apache-2.0 */
/* The files of src/tools/page that only the server sends, each with a zero after it. */
#ifndef UI_PAGE_H
#define UI_PAGE_H

#include "common/page_out.h"

extern const unsigned char page_ui_html[], page_ui_css[], page_ui_server_js[], page_ui_jobs_js[], page_ui_job_js[],
    page_ui_form_js[], page_ui_data_js[], page_ui_start_js[];

#endif
