# check out; send it again as it is: the same answer, and still one charge
curl -i http://ADDRESS/checkout -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: cart-1' \
    -H 'Content-Type: application/json' -d '{"product": "beans", "quantity": 2, "card": "tok_visa"}'

# a card without money: 402, and the goods go back
curl -i http://ADDRESS/checkout -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: cart-2' \
    -H 'Content-Type: application/json' -d '{"product": "beans", "quantity": 2, "card": "tok_declined"}'

# what happened to a key?
curl http://ADDRESS/orders/status/cart-1 -H 'Authorization: Bearer ada-token'

# what needs a person?
curl http://ADDRESS/admin/failed -H 'Authorization: Bearer operator-token'
