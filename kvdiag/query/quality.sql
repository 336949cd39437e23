-- quality_first_token: sources whose delta_nll is exactly 0 in every cell: the first answer token saw no compression
CREATE VIEW quality_first_token AS
SELECT workload, source_id, protocol, model, count(delta_nll) AS n_cells,
       count(*) FILTER (WHERE transition = 'C->W') AS n_c2w
FROM runs GROUP BY ALL HAVING count(delta_nll) >= 2 AND max(abs(delta_nll)) = 0 ORDER BY ALL;

-- quality_degenerate: cells that are no finding: labelled so, score 0 everywhere, or answers that do not depend on the source
CREATE VIEW quality_degenerate AS
WITH answered AS (
  SELECT r.*, c.score AS control_score, c.output AS control_output
  FROM runs r JOIN controls c USING (control_id) WHERE r.status = 'available'),
repeated AS (
  SELECT workload, cell_id, model, max(n) AS n_same_output
  FROM (SELECT workload, cell_id, model, output, count(DISTINCT source_id) AS n FROM answered GROUP BY ALL) GROUP BY ALL),
repeated_controls AS (
  SELECT workload, model, max(n) AS n_same_control
  FROM (SELECT workload, model, output, count(DISTINCT source_id) AS n FROM controls GROUP BY ALL) GROUP BY ALL),
cells AS (
  SELECT workload, cell_id, method, setting, protocol, model, count(*) AS n_runs, max(score) AS best_score,
         favg(control_score) AS control_score, count(DISTINCT nll) AS n_nll, count(nll) AS n_with_nll,
         max(degenerate) AS label, count(degenerate) AS n_labelled
  FROM answered GROUP BY ALL),
judged AS (
  SELECT *, CASE
    WHEN n_labelled = n_runs THEN 'labelled ' || label
    WHEN n_runs >= 10 AND best_score = 0 AND control_score > 0 THEN 'score 0 in every run'
    WHEN n_runs >= 10 AND n_with_nll = n_runs AND n_nll = 1 THEN 'one and the same nll for every source'
    WHEN n_runs >= 10 AND n_same_output > 0.5 * n_runs AND n_same_output > 2 * n_same_control
      THEN 'one and the same output for most sources' END AS why
  FROM cells JOIN repeated USING (workload, cell_id, model) JOIN repeated_controls USING (workload, model))
SELECT workload, method, setting, protocol, model, cell_id, n_runs, why FROM judged WHERE why IS NOT NULL ORDER BY ALL;

-- quality_repeated_prompts: prompts that stand under several sources, and whether their controls are judged differently
CREATE VIEW quality_repeated_prompts AS
SELECT s.workload, s.prompt_hash, count(DISTINCT s.source_id) AS n_sources,
       count(DISTINCT c.correct) > 1 AS judged_differently, min(s.source_id) AS first_source
FROM sources s JOIN controls c USING (source_id) GROUP BY ALL HAVING count(DISTINCT s.source_id) > 1 ORDER BY ALL;

-- quality_twins: cells with the same outputs and nll on all their sources: one method or setting run under two names
CREATE VIEW quality_twins AS
WITH prints AS (
  SELECT workload, model, protocol, cell_id, count(*) AS n_runs, bit_xor(hash(source_id, output, nll)) AS print
  FROM runs WHERE status = 'available' GROUP BY ALL HAVING count(*) >= 5)
SELECT a.workload, a.model, a.cell_id AS cell_a, b.cell_id AS cell_b, a.n_runs
FROM prints a JOIN prints b USING (workload, model, protocol, n_runs, print) WHERE a.cell_id < b.cell_id ORDER BY ALL;

-- quality_yes_no: answers to yes/no questions, counted right, that do not begin with the gold word
CREATE VIEW quality_yes_no AS
WITH asked AS (
  SELECT s.workload, s.source_id, lower(s.references[1]) AS gold, lower(trim(c.output)) AS said, c.correct,
         regexp_matches(said, '^\W*' || gold || '\b') AS begins
  FROM sources s JOIN controls c USING (source_id) WHERE gold IN ('yes', 'no'))
SELECT workload, source_id, gold, left(said, 60) AS said, begins FROM asked WHERE correct ORDER BY ALL;

-- quality_gold_format: right answers whose gold text is unlikely merely by format: its nll is 2 nats a token or more above the control's own answer (above 0 where that is unknown)
CREATE VIEW quality_gold_format AS
SELECT workload, source_id, nll, nll_control_answer, nll - coalesce(nll_control_answer, 0) >= 2 AS unlikely
FROM controls WHERE correct AND nll IS NOT NULL ORDER BY ALL;

-- quality_bytes: share of the full cache's bytes by cell: measured where known, else what the setting says at 16 bits
CREATE VIEW quality_bytes AS
SELECT tier(origin_label, setting) AS tier, method, setting, protocol,
       favg(kv_bytes / kv_bytes_full) AS measured_share, count(kv_bytes) AS n_measured,
       coalesce(measured_share, keep, TRY_CAST(regexp_extract(setting, '^bits=(\d+)$', 1) AS DOUBLE) / 16) AS share
FROM runs WHERE status = 'available' GROUP BY tier, method, setting, protocol, keep ORDER BY ALL;

-- quality_flags: all rules in one list: what was found, among how many, and how many C->W rows it touches
CREATE VIEW quality_flags AS
WITH c2w_cells AS (SELECT cell_id, count(*) AS n_c2w FROM runs WHERE transition = 'C->W' GROUP BY ALL),
degenerate_cells AS (SELECT cell_id, string_agg(DISTINCT why, '; ' ORDER BY why) AS why FROM quality_degenerate GROUP BY ALL),
tiers AS (SELECT tier, max(share) - min(share) AS gap, string_agg(DISTINCT method || ' ' || round(share, 3), ', ' ORDER BY method || ' ' || round(share, 3)) AS shares
          FROM quality_bytes GROUP BY ALL)
SELECT 'first_token_uncompressed' AS flag, workload, NULL AS subject, count(DISTINCT source_id) AS n_found,
       (SELECT count(*) FROM sources s WHERE s.workload = q.workload) AS n_checked, sum(n_c2w)::BIGINT AS n_c2w,
       'sources with delta_nll exactly 0 in every cell' AS what
FROM quality_first_token q GROUP BY ALL
UNION ALL
SELECT 'degenerate_cell', NULL, d.cell_id, NULL, NULL, coalesce(max(n_c2w), 0), max(d.why)
FROM degenerate_cells d LEFT JOIN c2w_cells USING (cell_id) GROUP BY ALL
UNION ALL
SELECT 'repeated_prompt', workload, NULL, count(*), (SELECT count(*) FROM sources s WHERE s.workload = q.workload), NULL,
       'prompts under several sources; ' || count(*) FILTER (WHERE judged_differently) || ' of them judged differently'
FROM quality_repeated_prompts q GROUP BY ALL
UNION ALL
SELECT 'twin_cells', workload, cell_a || ' = ' || cell_b, n_runs, n_runs, NULL, 'equal outputs and nll on all sources'
FROM quality_twins
UNION ALL
SELECT 'yes_no_inside_words', string_agg(DISTINCT workload, ', ' ORDER BY workload), NULL,
       count(*) FILTER (WHERE NOT begins), count(*), NULL,
       'right yes/no answers that do not begin with the gold word'
FROM quality_yes_no HAVING count(*) FILTER (WHERE NOT begins) > 0
UNION ALL
SELECT 'gold_format', workload, NULL, count(*) FILTER (WHERE unlikely), count(*), NULL,
       'right controls whose gold nll is 2 nats a token above their own answer (above 0 where that is unknown); median gold nll ' || round(median(nll), 2)
FROM quality_gold_format GROUP BY ALL HAVING count(*) FILTER (WHERE unlikely) > 0.2 * count(*)
UNION ALL
SELECT 'unequal_bytes', NULL, 'tier ' || tier, NULL, NULL, NULL, 'share of the full bytes: ' || shares
FROM tiers WHERE gap > 0.02
ORDER BY ALL;
