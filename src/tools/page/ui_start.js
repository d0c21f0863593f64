/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the page that the address names. */
"use strict";
(function () {
  const ROUTES = [[/^#\/jobs$/, () => Jobs.show()], [/^#\/new$/, () => Form.show(null)], [/^#\/data$/, () => Data.show()],
    [/^#\/job\/(\d+)$/, (m) => Job.show(+m[1])], [/^#\/edit\/(\d+)$/, (m) => Form.show(+m[1])]];
  function go() {
    Server.takeToken();
    Server.say("");
    Job.leave();
    Server.leave();
    for (const [pattern, show] of ROUTES) {
      const m = pattern.exec(location.hash);
      if (m) { show(m); return; }
    }
    location.hash = "#/jobs";
  }
  addEventListener("hashchange", go);
  go();
})();
