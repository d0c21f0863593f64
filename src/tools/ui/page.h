/* SPDX-License-Identifier: Apache-2.0 */
/* Files of src/tools/page for the server, each followed by a zero byte. */
#ifndef UI_PAGE_H
#define UI_PAGE_H

#include "common/page_out.h"

extern const unsigned char page_ui_html[], page_ui_css[], page_ui_server_js[], page_ui_jobs_js[], page_ui_job_js[],
    page_ui_form_js[], page_ui_data_js[], page_ui_start_js[], page_ui_tenants_js[], page_ui_try_js[];

#endif
