# place an order; send it again as it is: the same answer, and still one order
curl -i http://ADDRESS/orders -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: order-1' \
    -H 'Content-Type: application/json' -d '{"product": "beans", "quantity": 2}'

# the same key for another order: 422
curl -i http://ADDRESS/orders -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: order-1' \
    -H 'Content-Type: application/json' -d '{"product": "beans", "quantity": 3}'

# cancel it, as often as you like: one refund
curl -i -X POST http://ADDRESS/orders/1/cancel -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: cancel-1'

# what is left
curl -i http://ADDRESS/account -H 'Authorization: Bearer ada-token'
