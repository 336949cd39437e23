-- wilson_low: lower end of the 95 % Wilson interval of k successes in n trials
CREATE MACRO wilson_low(k, n) AS CASE WHEN n = 0 THEN NULL ELSE
  greatest(0, (k + 1.920729 - 1.959964 * sqrt(k * (n - k)::DOUBLE / n + 0.960365)) / (n + 3.841459)) END;

-- wilson_high: upper end of the 95 % Wilson interval of k successes in n trials
CREATE MACRO wilson_high(k, n) AS CASE WHEN n = 0 THEN NULL ELSE
  least(1, (k + 1.920729 + 1.959964 * sqrt(k * (n - k)::DOUBLE / n + 0.960365)) / (n + 3.841459)) END;

-- n_eligible: rows for which a metric has a meaning; takes its __status column
CREATE MACRO n_eligible(s) AS count(*) FILTER (WHERE s <> 'not_applicable');

-- n_supported: eligible rows whose method can run; takes a __status column
CREATE MACRO n_supported(s) AS count(*) FILTER (WHERE s NOT IN ('not_applicable', 'unsupported'));

-- n_attempted: rows for which a value was tried for; takes a __status column
CREATE MACRO n_attempted(s) AS count(*) FILTER (WHERE s IN ('available', 'failed'));

-- n_available: rows with a value; takes a __status column
CREATE MACRO n_available(s) AS count(*) FILTER (WHERE s = 'available');

-- coverage_of: share of eligible rows with a value; takes a __status column
CREATE MACRO coverage_of(s) AS n_available(s) / nullif(n_eligible(s), 0);

-- tier: what pairs settings of different methods: the origin's label (75%), or the setting itself
CREATE MACRO tier(label, setting) AS coalesce(label, setting);
