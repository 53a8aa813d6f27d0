http_urlpatterns = []
websocket_urlpatterns = []
