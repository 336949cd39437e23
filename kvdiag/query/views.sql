-- failure_rates: right answers turned wrong by workload, method, setting and protocol, with denominators
CREATE VIEW failure_rates AS
SELECT workload, method, setting, protocol,
       count(*) AS n_runs,
       count(*) FILTER (WHERE transition IS NOT NULL) AS n_answered,
       count(*) FILTER (WHERE transition IN ('C->C', 'C->W')) AS n_eligible,
       count(*) FILTER (WHERE transition = 'C->W') AS n_c2w,
       n_c2w / nullif(n_eligible, 0) AS c2w_rate,
       wilson_low(n_c2w, n_eligible) AS c2w_low,
       wilson_high(n_c2w, n_eligible) AS c2w_high
FROM runs GROUP BY ALL ORDER BY ALL;
