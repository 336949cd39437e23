-- wilson_low: lower end of the 95 % Wilson interval of k successes in n trials
CREATE MACRO wilson_low(k, n) AS CASE WHEN n = 0 THEN NULL ELSE
  greatest(0, (k + 1.920729 - 1.959964 * sqrt(k * (n - k)::DOUBLE / n + 0.960365)) / (n + 3.841459)) END;

-- wilson_high: upper end of the 95 % Wilson interval of k successes in n trials
CREATE MACRO wilson_high(k, n) AS CASE WHEN n = 0 THEN NULL ELSE
  least(1, (k + 1.920729 + 1.959964 * sqrt(k * (n - k)::DOUBLE / n + 0.960365)) / (n + 3.841459)) END;

-- n_eligible: rows for which a metric has a meaning; takes its __status column
CREATE MACRO n_eligible(s) AS count(*) FILTER (WHERE s <> 'not_applicable');

-- n_available: rows with a value; takes a __status column
CREATE MACRO n_available(s) AS count(*) FILTER (WHERE s = 'available');
