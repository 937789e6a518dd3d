-- Where the tour can stop a statement, so that the server can be killed at an exact moment. The service knows nothing of it.
CREATE SCHEMA tour;

CREATE TABLE tour.stop (place text NOT NULL, total_cents bigint NOT NULL);

CREATE FUNCTION tour.come_by() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM tour.stop WHERE place = TG_ARGV[0]) THEN
        PERFORM pg_advisory_xact_lock(7, 7);
    END IF;
    RETURN NEW;
END
$$;

-- Deferred: they fire when COMMIT is being carried out, with everything written and nothing committed.
CREATE CONSTRAINT TRIGGER reserve_stock AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION tour.come_by('reserve stock');

CREATE CONSTRAINT TRIGGER mark_paid AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.status = 'paid') EXECUTE FUNCTION tour.come_by('mark paid');

CREATE CONSTRAINT TRIGGER return_stock AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.status = 'cancelled') EXECUTE FUNCTION tour.come_by('return stock');

-- The runtime's own statements.
CREATE TRIGGER record_charge BEFORE UPDATE ON idem.idempotency_keys
    FOR EACH ROW WHEN (
        NEW.status IS NULL
        AND strpos(convert_from(NEW.recovery_points, 'UTF8'), E'"charge"\t') > 0
        AND strpos(convert_from(OLD.recovery_points, 'UTF8'), E'"charge"\t') = 0
    ) EXECUTE FUNCTION tour.come_by('record charge');

CREATE TRIGGER store_response BEFORE UPDATE ON idem.idempotency_keys
    FOR EACH ROW WHEN (NEW.status IS NOT NULL) EXECUTE FUNCTION tour.come_by('store response');

-- Only the delivery that is about this amount: others pass.
CREATE FUNCTION tour.come_by_with_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM tour.stop
        WHERE place = TG_ARGV[0] AND total_cents = (convert_from(OLD.payload, 'UTF8')::json ->> 'total_cents')::bigint
    ) THEN
        PERFORM pg_advisory_xact_lock(7, 7);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER record_delivery BEFORE UPDATE ON idem.outbox
    FOR EACH ROW WHEN (NEW.delivered_at IS NOT NULL) EXECUTE FUNCTION tour.come_by_with_message('record delivery');
