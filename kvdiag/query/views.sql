-- statuses: the vocabulary of missing values, worst first
CREATE VIEW statuses AS
SELECT * FROM (VALUES
  (1, 'failed', 'tried, no valid value'),
  (2, 'unsupported', 'the method cannot run here'),
  (3, 'not_measured', 'possible, not collected'),
  (4, 'not_applicable', 'has no meaning here'),
  (5, 'available', 'there is a value')) AS t(rank, status, meaning);

-- failure_rates: right answers turned wrong by workload, method, setting and protocol, with denominators
CREATE VIEW failure_rates AS
SELECT workload, method, setting, protocol,
       count(*) AS n_runs,
       count(*) FILTER (WHERE transition IS NOT NULL) AS n_answered,
       count(*) FILTER (WHERE transition IN ('C->C', 'C->W')) AS n_eligible,
       count(*) FILTER (WHERE transition = 'C->W') AS n_c2w,
       count(degenerate) AS n_degenerate,
       n_c2w / nullif(n_eligible, 0) AS c2w_rate,
       wilson_low(n_c2w, n_eligible) AS c2w_low,
       wilson_high(n_c2w, n_eligible) AS c2w_high
FROM runs GROUP BY ALL ORDER BY ALL;

-- outcomes: scores of control and run by workload and cell, over the same sources, with denominators
CREATE VIEW outcomes AS
SELECT r.workload, r.method, r.setting, r.origin_label, r.protocol,
       count(*) AS n_sources,
       count(*) FILTER (WHERE r.status <> 'unsupported') AS n_supported,
       n_available(r.score__status) AS n_scored,
       favg(c.score) AS control_score,
       favg(c.correct::INT) AS control_accuracy,
       count(*) FILTER (WHERE c.correct) AS n_control_correct,
       favg(r.score) AS score,
       favg(r.correct::INT) AS accuracy,
       count(*) FILTER (WHERE r.transition = 'C->W') AS n_c2w,
       n_c2w / nullif(count(*) FILTER (WHERE r.transition IN ('C->C', 'C->W')), 0) AS c2w_rate
FROM runs r JOIN controls c USING (control_id) GROUP BY ALL ORDER BY ALL;

-- metric_counts: for each metric and cell how many rows are eligible, supported, attempted, available, and its mean
CREATE VIEW metric_counts AS
WITH long AS (
  SELECT workload, method, setting, protocol, parts.metric AS metric, parts.value AS value, parts.status AS status
  FROM (SELECT workload, method, setting, protocol, unnest([
    {metric: 'score', value: score, status: score__status},
    {metric: 'nll', value: nll, status: nll__status},
    {metric: 'err', value: err, status: err__status},
    {metric: 'ecov', value: ecov, status: ecov__status},
    {metric: 'distractor_retention', value: distractor_retention, status: distractor_retention__status},
    {metric: 'delta_nll', value: delta_nll, status: delta_nll__status},
    {metric: 'delta_nll_control', value: delta_nll_control, status: delta_nll_control__status},
    {metric: 'gpr', value: gpr, status: gpr__status},
    {metric: 'kl', value: kl, status: kl__status},
    {metric: 'top50_overlap', value: top50_overlap, status: top50_overlap__status},
    {metric: 'gold_rank_shift', value: gold_rank_shift, status: gold_rank_shift__status},
    {metric: 'eam', value: eam, status: eam__status},
    {metric: 'ear', value: ear, status: ear__status},
    {metric: 'prefix_agreement', value: prefix_agreement, status: prefix_agreement__status}
  ]) AS parts FROM runs))
SELECT workload, method, setting, protocol, metric,
       count(*) AS n_total, n_eligible(status) AS n_eligible, n_supported(status) AS n_supported,
       n_attempted(status) AS n_attempted, n_available(status) AS n_available, favg(value) AS mean
FROM long GROUP BY ALL ORDER BY ALL;

-- missing_reasons: why answers are missing, by cell
CREATE VIEW missing_reasons AS
SELECT workload, method, setting, protocol, status, reason, count(*) AS n_runs
FROM runs WHERE status <> 'available' GROUP BY ALL ORDER BY ALL;

-- failure_overlap: for each pair of methods at a tier, how far their failures agree on sources both answered, and means over shared ones
CREATE VIEW failure_overlap AS
WITH answered AS (
  SELECT workload, protocol, model, tier(origin_label, setting) AS tier, method, source_id,
         transition = 'C->W' AS failed, ecov, delta_nll, ear
  FROM runs WHERE transition IS NOT NULL)
SELECT a.workload, a.protocol, a.model, a.tier, a.method AS method_a, b.method AS method_b, count(*) AS n_sources,
       count(*) FILTER (WHERE a.failed) AS n_a, count(*) FILTER (WHERE b.failed) AS n_b,
       count(*) FILTER (WHERE a.failed AND b.failed) AS n_intersection,
       count(*) FILTER (WHERE a.failed OR b.failed) AS n_union,
       n_intersection / nullif(n_union, 0) AS jaccard,
       favg(a.ecov) FILTER (WHERE a.failed AND b.failed) AS ecov_a,
       favg(b.ecov) FILTER (WHERE a.failed AND b.failed) AS ecov_b,
       favg(a.delta_nll) FILTER (WHERE a.failed AND b.failed) AS delta_nll_a,
       favg(b.delta_nll) FILTER (WHERE a.failed AND b.failed) AS delta_nll_b,
       favg(a.ear) FILTER (WHERE a.failed AND b.failed) AS ear_a,
       favg(b.ear) FILTER (WHERE a.failed AND b.failed) AS ear_b
FROM answered a JOIN answered b USING (workload, protocol, model, tier, source_id)
WHERE a.method < b.method GROUP BY ALL ORDER BY ALL;

-- signature_shares: signatures of the failures of a workload, degenerate cells apart, and what share could not be told
CREATE VIEW signature_shares AS
WITH named AS (
  SELECT workload, degenerate IS NOT NULL AS is_degenerate,
         coalesce(signature, signature__status || ': ' || signature__reason) AS signature FROM c2w),
counted AS (SELECT workload, is_degenerate, signature, count(*) AS n_c2w FROM named GROUP BY ALL)
SELECT *, sum(n_c2w) OVER (PARTITION BY workload, is_degenerate)::BIGINT AS n_total,
       n_c2w / sum(n_c2w) OVER (PARTITION BY workload, is_degenerate) AS share
FROM counted ORDER BY ALL;

-- coverage_profiles: mean diagnostics of the failures of each cell, each with the number of rows it rests on
CREATE VIEW coverage_profiles AS
SELECT workload, method, setting, origin_label, protocol, coverage_type, count(*) AS n_c2w,
       favg(err) AS err, count(err) AS n_err, favg(ecov) AS ecov, count(ecov) AS n_ecov,
       favg(nll) AS nll, count(nll) AS n_nll, favg(delta_nll) AS delta_nll, count(delta_nll) AS n_delta_nll,
       favg(gpr) AS gpr, count(gpr) AS n_gpr, favg(ear) AS ear, count(ear) AS n_ear
FROM c2w GROUP BY ALL ORDER BY ALL;
