-- known_source | runs | source_id | names no source
SELECT run_id FROM runs ANTI JOIN sources USING (source_id);

-- known_control | runs | control_id | names no control
SELECT run_id FROM runs ANTI JOIN controls USING (control_id);

-- known_source | controls | source_id | names no source
SELECT control_id FROM controls ANTI JOIN sources USING (source_id);

-- has_control | sources | source_id | has no control
SELECT source_id FROM sources ANTI JOIN controls USING (source_id);

-- known_method | runs | method | is not in methods
SELECT run_id FROM runs ANTI JOIN methods USING (method);

-- known_run | retention | run_id | names no run
SELECT run_id FROM retention ANTI JOIN runs USING (run_id);

-- has_retention | runs | run_id | has no row in retention, though others have
SELECT run_id FROM runs ANTI JOIN retention USING (run_id) WHERE (SELECT count(*) FROM retention) > 0;

-- known_run | repairs | run_id | names no run
SELECT repair_id FROM repairs ANTI JOIN runs USING (run_id);

-- run_key | runs | run_id | must be source_id::cell_id::model
SELECT run_id FROM runs WHERE run_id <> source_id || '::' || cell_id || '::' || model;

-- cell_key | runs | cell_id | must be method/setting/protocol
SELECT run_id FROM runs WHERE cell_id <> method || '/' || setting || '/' || replace(protocol, 'query_', '');

-- control_key | runs | control_id | must be source_id::full::model
SELECT run_id FROM runs WHERE control_id <> source_id || '::full::' || model;

-- control_key | controls | control_id | must be source_id::full::model
SELECT control_id FROM controls WHERE control_id <> source_id || '::full::' || model;

-- same_workload | runs | workload | workload or task differs from its source's
SELECT run_id FROM runs JOIN sources USING (source_id)
WHERE (runs.workload, runs.task) IS DISTINCT FROM (sources.workload, sources.task);

-- same_workload | controls | workload | workload or task differs from its source's
SELECT control_id FROM controls JOIN sources USING (source_id)
WHERE (controls.workload, controls.task) IS DISTINCT FROM (sources.workload, sources.task);

-- answer_state | runs | status | an available run has output and score; another has neither, nor correct
SELECT run_id FROM runs
WHERE (status = 'available') <> (output IS NOT NULL) OR (status <> 'available' AND correct IS NOT NULL)
   OR (status = 'available') <> (score__status = 'available');

-- judged | runs | correct | is null for one answer of a task and not for another; a task has right answers or has none
SELECT run_id FROM runs
WHERE status = 'available' AND correct IS NULL AND EXISTS (
  SELECT 1 FROM (SELECT workload, task, correct FROM runs UNION ALL SELECT workload, task, correct FROM controls) o
  WHERE o.correct IS NOT NULL AND (o.workload, o.task) = (runs.workload, runs.task));

-- answer_state | controls | status | an available control has output and score; another has neither, nor correct
SELECT control_id FROM controls
WHERE (status = 'available') <> (output IS NOT NULL) OR (status <> 'available' AND correct IS NOT NULL)
   OR (status = 'available') <> (score__status = 'available');

-- judged | controls | correct | is null for one answer of a task and not for another; a task has right answers or has none
SELECT control_id FROM controls
WHERE status = 'available' AND correct IS NULL AND EXISTS (
  SELECT 1 FROM (SELECT workload, task, correct FROM runs UNION ALL SELECT workload, task, correct FROM controls) o
  WHERE o.correct IS NOT NULL AND (o.workload, o.task) = (controls.workload, controls.task));

-- transition | runs | transition | disagrees with the correctness of control and run
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE runs.transition IS DISTINCT FROM
  (CASE WHEN controls.correct THEN 'C' WHEN NOT controls.correct THEN 'W' END) || '->' ||
  (CASE WHEN runs.correct THEN 'C' WHEN NOT runs.correct THEN 'W' END);

-- token_count | runs | n_new_tokens | must be the number of output_tokens
SELECT run_id FROM runs WHERE output_tokens IS NOT NULL AND n_new_tokens IS DISTINCT FROM len(output_tokens);

-- token_count | controls | n_new_tokens | must be the number of output_tokens
SELECT control_id FROM controls WHERE output_tokens IS NOT NULL AND n_new_tokens IS DISTINCT FROM len(output_tokens);

-- fraction | runs | score | score, err, ecov, distractor_retention, eam, top50_overlap, prefix_agreement, repetition lie in 0 to 1
SELECT run_id FROM runs
WHERE NOT (coalesce(score, 0) BETWEEN 0 AND 1 AND coalesce(err, 0) BETWEEN 0 AND 1
  AND coalesce(ecov, 0) BETWEEN 0 AND 1 AND coalesce(distractor_retention, 0) BETWEEN 0 AND 1
  AND coalesce(eam, 0) BETWEEN 0 AND 1.01 AND coalesce(top50_overlap, 0) BETWEEN 0 AND 1
  AND coalesce(prefix_agreement, 0) BETWEEN 0 AND 1 AND coalesce(repetition, 0) BETWEEN 0 AND 1);

-- fraction | controls | score | score and eam lie in 0 to 1
SELECT control_id FROM controls
WHERE NOT (coalesce(score, 0) BETWEEN 0 AND 1 AND coalesce(eam, 0) BETWEEN 0 AND 1.01);

-- delta_nll | runs | delta_nll | must be nll(run) - nll(control)
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE abs(runs.delta_nll - (runs.nll - controls.nll)) > 1e-9 * (1 + abs(runs.nll));

-- delta_nll_first | runs | delta_nll_first | must be nll_first(run) - nll_first(control)
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE abs(runs.delta_nll_first - (runs.nll_first - controls.nll_first)) > 1e-9 * (1 + abs(runs.nll_first));

-- delta_nll_control | runs | delta_nll_control | must be nll_control_answer(run) - nll_control_answer(control)
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE abs(runs.delta_nll_control - (runs.nll_control_answer - controls.nll_control_answer))
  > 1e-9 * (1 + abs(runs.nll_control_answer));

-- gold_rank_shift | runs | gold_rank_shift | must be gold_rank(run) - gold_rank(control)
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE abs(runs.gold_rank_shift - (runs.gold_rank - controls.gold_rank)) > 1e-9 * (1 + abs(runs.gold_rank));

-- gpr | runs | gpr | must be exp(-delta_nll)
SELECT run_id FROM runs WHERE abs(gpr - exp(-delta_nll)) > 1e-9 * (1 + gpr);

-- ear | runs | ear | must be eam(run) / eam(control)
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE controls.eam > 0 AND abs(runs.ear - runs.eam / controls.eam) > 1e-9 * (1 + runs.ear);

-- paired_state | runs | delta_nll | is available exactly where both sides' nll are
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE (delta_nll__status = 'available') <> (runs.nll__status = 'available' AND controls.nll__status = 'available')
   OR (gpr__status = 'available') <> (delta_nll__status = 'available');

-- length_ratio | runs | length_ratio | must be n_new_tokens(run) / n_new_tokens(control)
SELECT run_id FROM runs JOIN controls USING (control_id)
WHERE abs(length_ratio - runs.n_new_tokens / controls.n_new_tokens) > 1e-9;

-- structural | runs | structurally_addressable | goes with coverage_type structural_position, which has no err or ecov
SELECT run_id FROM runs
WHERE structurally_addressable <> (coverage_type = 'structural_position')
   OR (structurally_addressable AND (err IS NOT NULL OR ecov IS NOT NULL));

-- kept_tokens | runs | kept_tokens_mean | kept_tokens_min <= mean <= max <= n_compressed must hold
SELECT run_id FROM runs
WHERE NOT (kept_tokens_min <= kept_tokens_mean AND kept_tokens_mean <= kept_tokens_max
  AND kept_tokens_max <= n_compressed);

-- kept_slots | retention | kept_slots | mean, least and most differ from the run's kept_tokens
SELECT run_id FROM retention JOIN runs USING (run_id)
WHERE abs(list_avg(kept_slots) - kept_tokens_mean) > 1e-6 * (1 + kept_tokens_mean)
   OR list_min(kept_slots) <> kept_tokens_min OR list_max(kept_slots) <> kept_tokens_max;

-- err_slots | retention | err_slots | their mean differs from the run's err
SELECT run_id FROM retention JOIN runs USING (run_id) WHERE abs(list_avg(err_slots) - err) > 1e-9;

-- ecov_slots | retention | ecov_slots | their mean differs from the run's ecov
SELECT run_id FROM retention JOIN runs USING (run_id) WHERE abs(list_avg(ecov_slots) - ecov) > 1e-9;

-- eam_layers | retention | eam_layers | their mean differs from the run's eam
SELECT run_id FROM retention JOIN runs USING (run_id) WHERE abs(list_avg(eam_layers) - eam) > 1e-9;

-- slot_count | retention | kept_slots | must have n_layers * n_kv_heads entries
SELECT run_id FROM retention
WHERE len(kept_slots) <> n_layers * n_kv_heads OR len(err_slots) <> n_layers * n_kv_heads
   OR len(ecov_slots) <> n_layers * n_kv_heads OR len(eam_layers) <> n_layers;

-- spans | sources | evidence_starts | starts and ends must pair up, inside the context
SELECT source_id FROM sources
WHERE len(evidence_starts) <> len(evidence_ends) OR len(distractor_starts) <> len(distractor_ends)
   OR len(evidence_token_starts) <> len(evidence_token_ends)
   OR len(list_filter(list_zip(evidence_starts, evidence_ends), lambda p: p[1] >= p[2])) > 0
   OR list_max(evidence_ends) > length(context) OR list_max(evidence_token_ends) > n_context_tokens;

-- mapped_evidence | sources | evidence_status | available exactly where every evidence span has its tokens
SELECT source_id FROM sources
WHERE (evidence_status = 'available') <> (len(evidence_token_starts) > 0)
   OR (evidence_status = 'available' AND len(evidence_token_starts) <> len(evidence_starts));

-- c2w_is_c2w | c2w | transition | holds a run that did not turn wrong, or that runs does not have
SELECT run_id FROM c2w ANTI JOIN (SELECT run_id FROM runs WHERE transition = 'C->W') AS turned USING (run_id);

-- c2w_is_whole | runs | transition | turned wrong but is not in c2w
SELECT run_id FROM runs ANTI JOIN c2w USING (run_id) WHERE transition = 'C->W';

-- c2w_source | c2w | question | question or references differ from the source's
SELECT run_id FROM c2w JOIN sources USING (source_id)
WHERE (c2w.question, c2w.references) IS DISTINCT FROM (sources.question, sources.references);

-- c2w_control | c2w | control_output | differs from the control's output
SELECT run_id FROM c2w JOIN controls USING (control_id) WHERE c2w.control_output IS DISTINCT FROM controls.output;
